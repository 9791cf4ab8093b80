//! The choice between graphics APIs: one with a hardware adapter comes before one that has software renderers only.

/// Returns the first list with a hardware adapter or, if there is none, the first list that is not empty. There is one list
/// for each graphics API, the preferred one first; lists after the chosen one are not requested.
pub(crate) fn first_with_hardware<T>(
    lists: impl IntoIterator<Item = Vec<T>>,
    is_hardware: impl Fn(&T) -> bool,
) -> Vec<T> {
    let mut chosen = Vec::new();
    for list in lists {
        if list.iter().any(&is_hardware) {
            return list;
        }
        if chosen.is_empty() {
            chosen = list;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_renderers_do_not_hide_the_hardware_of_another_graphics_api() {
        let choose = |lists: [&[&'static str]; 2]| {
            let mut asked = 0;
            let each = lists.into_iter().map(|list| {
                asked += 1;
                list.to_vec()
            });
            let chosen = first_with_hardware(each, |name| name.starts_with("GPU"));
            (chosen, asked)
        };
        assert_eq!(
            choose([&["llvmpipe"], &["GPU 0", "Basic Render Driver"]]),
            (vec!["GPU 0", "Basic Render Driver"], 2)
        );
        assert_eq!(choose([&["llvmpipe", "GPU 0"], &["GPU 1"]]), (vec!["llvmpipe", "GPU 0"], 1));
        assert_eq!(choose([&["llvmpipe"], &["Basic Render Driver"]]), (vec!["llvmpipe"], 2));
        assert_eq!(choose([&[], &["Basic Render Driver"]]), (vec!["Basic Render Driver"], 2));
        assert_eq!(choose([&[], &[]]), (Vec::new(), 2));
    }
}
