//! Lists of string constants.

/// Declares public string constants, and a list `ALL` of them for the tests of the module, which therefore misses none.
#[macro_export]
macro_rules! listed_names {
    ($($(#[$about:meta])* $name:ident = $text:literal;)+) => {
        $($(#[$about])* pub const $name: &str = $text;)+

        #[cfg(test)]
        const ALL: &[&str] = &[$($name),+];
    };
}
