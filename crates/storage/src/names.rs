//! Names of the variants of enums, as files, messages and the command line state them.

/// Gives the variants of an enum their names: a method that returns the name, and `Display`, which writes it.
///
/// ```
/// #[derive(Clone, Copy)]
/// enum Blend {
///     Crop,
///     Gaussian,
/// }
///
/// cytoscope_storage::named! {
///     /// Returns the name in files.
///     fn name(Blend) {
///         Crop => "crop",
///         Gaussian => "gaussian",
///     }
/// }
///
/// assert_eq!((Blend::Crop.name(), Blend::Gaussian.to_string().as_str()), ("crop", "gaussian"));
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$doc:meta])*
        $visibility:vis fn $method:ident($enum:ident) { $($variant:ident => $name:literal),+ $(,)? }
    ) => {
        impl $enum {
            $(#[$doc])*
            $visibility fn $method(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.$method())
            }
        }
    };
}

/// Implements `FromStr` for an enum whose constant `ALL` lists its variants and whose method `name` returns their names. The
/// error for any other text begins with the literal, such as "invalid choice", and lists the names.
///
/// ```
/// #[derive(Clone, Copy)]
/// enum Blend {
///     Crop,
///     Gaussian,
/// }
///
/// cytoscope_storage::named! {
///     /// Returns the name in files.
///     fn name(Blend) {
///         Crop => "crop",
///         Gaussian => "gaussian",
///     }
/// }
///
/// impl Blend {
///     const ALL: [Self; 2] = [Self::Crop, Self::Gaussian];
/// }
///
/// cytoscope_storage::parsed_by_name!(Blend, "invalid blending");
///
/// assert!(matches!("crop".parse(), Ok(Blend::Crop)));
/// assert_eq!("smear".parse::<Blend>().err().unwrap(), "invalid blending \"smear\": expected crop or gaussian");
/// ```
#[macro_export]
macro_rules! parsed_by_name {
    ($enum:ident, $problem:literal) => {
        impl ::std::str::FromStr for $enum {
            type Err = ::std::string::String;

            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                let known = Self::ALL.into_iter().find(|known| known.name() == text);
                known.ok_or_else(|| {
                    let expected = $crate::names::alternatives(&Self::ALL.map(Self::name));
                    ::std::format!("{} \"{text}\": expected {expected}", $problem)
                })
            }
        }
    };
}

/// Returns names as the end of "expected …": `auto, tiff or ome-zarr`.
pub fn alternatives(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_listed_in_words() {
        assert_eq!(alternatives(&["auto", "tiff", "ome-zarr"]), "auto, tiff or ome-zarr");
        assert_eq!(["a or b", "a", ""], [&["a", "b"][..], &["a"], &[]].map(alternatives));
    }
}
