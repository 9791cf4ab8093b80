//! Versions of bioimage.io's format.

/// The version of the format of a description, as far as the meaning of its fields depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatVersion {
    /// 0.3 and 0.4.
    V04,
    /// 0.5.
    V05,
}

impl FormatVersion {
    /// Returns the version that a description states, such as `0.5.3`; `None` for one that is not read.
    pub fn of(stated: &str) -> Option<Self> {
        let mut numbers = stated.split('.');
        match (numbers.next()?, numbers.next()?) {
            ("0", "3" | "4") => Some(Self::V04),
            ("0", "5") => Some(Self::V05),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers_decide() {
        for (stated, version) in [
            ("0.3.6", Some(FormatVersion::V04)),
            ("0.4.10", Some(FormatVersion::V04)),
            ("0.5", Some(FormatVersion::V05)),
            ("0.5.3", Some(FormatVersion::V05)),
            ("0.50.0", None),
            ("0.6.0", None),
            ("1.5.0", None),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(FormatVersion::of(stated), version, "{stated}");
        }
    }
}
