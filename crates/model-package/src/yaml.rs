//! YAML parsing with limits on bytes, nodes and depth.
//!
//! With aliases, a small text can represent a tree of any size, and the YAML scanner's time grows with the square of
//! some counts. The text is therefore checked before it is scanned, and the tree is counted while it is built.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// Maximum number of `[` and `{` in a text. The scanner checks every open bracket for every token, and only the scanner
/// knows which brackets are open; this many take a tenth of a second, and descriptions have hundreds.
const MAX_BRACKETS: usize = 10_000;
/// Maximum number of characters that begin or separate nodes (`[ { , : ?`, and `-` before a blank). Each becomes a few
/// events of some hundred bytes in total; descriptions with a long training record have 4,000.
const MAX_INDICATORS: usize = 200_000;
/// Maximum number of lines that begin with `%`. Each directive is compared with all others; descriptions have at most
/// one.
const MAX_DIRECTIVES: usize = 16;
/// Maximum number of values and keys of the tree, with aliases expanded.
const MAX_NODES: usize = 200_000;
/// Maximum bytes of text in the tree, with aliases expanded: four times the largest description.
const MAX_TEXT_BYTES: usize = 4 * super::MAX_RDF_BYTES as usize;
/// Maximum nesting depth of the tree, the same as `serde_json`'s. Descriptions nest about ten levels deep.
const MAX_DEPTH: usize = 128;

/// Parses one YAML document into a JSON value.
///
/// Numbers that JSON cannot represent (`.nan`, `.inf`, more than 64 bits) become strings, so that their value is not
/// altered.
///
/// # Errors
/// The end of a sentence ("has ..., more than the limit of ...") if the text exceeds a limit, is not YAML, or has a
/// mapping with a duplicate key or a key that is not a string.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    check_text(text)?;
    let budget = Budget { nodes: Cell::new(MAX_NODES), text_bytes: Cell::new(MAX_TEXT_BYTES) };
    let tree = Tree { budget: &budget, depth: 0 };
    tree.deserialize(serde_yaml_ng::Deserializer::from_str(text)).map_err(|e| format!("is not valid YAML: {e}"))
}

/// Checks the counts that bound the scanner's work, over all bytes, whether quoted or not.
fn check_text(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let over = |count: usize, what: &str, limit: usize| {
        if count > limit { Err(format!("has {count} {what}, more than the limit of {limit}")) } else { Ok(()) }
    };
    let brackets = bytes.iter().filter(|b| matches!(b, b'[' | b'{')).count();
    over(brackets, "opening brackets", MAX_BRACKETS)?;
    let separators = bytes.iter().filter(|b| matches!(b, b',' | b':' | b'?')).count();
    let blank = |b: Option<&u8>| b.is_none_or(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | 0xc2 | 0xe2));
    let dashes = bytes.iter().enumerate().filter(|(i, b)| **b == b'-' && blank(bytes.get(i + 1))).count();
    over(brackets + separators + dashes, "characters that separate values", MAX_INDICATORS)?;
    let directives = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']);
    over(
        directives.filter(|line| line.trim_start_matches('\u{feff}').starts_with('%')).count(),
        "directives",
        MAX_DIRECTIVES,
    )
}

/// Nodes and text that may still be created.
struct Budget {
    nodes: Cell<usize>,
    text_bytes: Cell<usize>,
}

impl Budget {
    fn node<E: Error>(&self) -> Result<(), E> {
        let left = self.nodes.get().checked_sub(1);
        self.nodes
            .set(left.ok_or_else(|| E::custom(format_args!("more than {MAX_NODES} values, with aliases expanded")))?);
        Ok(())
    }

    fn text<E: Error>(&self, text: &str) -> Result<String, E> {
        let left = self.text_bytes.get().checked_sub(text.len());
        let over = || E::custom(format_args!("more than {MAX_TEXT_BYTES} bytes of text, with aliases expanded"));
        self.text_bytes.set(left.ok_or_else(over)?);
        Ok(text.to_owned())
    }
}

/// Builds a [`Value`] within a [`Budget`].
#[derive(Clone, Copy)]
struct Tree<'a> {
    budget: &'a Budget,
    depth: usize,
}

impl Tree<'_> {
    /// Returns the builder of a value one level further down.
    ///
    /// # Errors
    /// If there are more than [`MAX_DEPTH`] levels.
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!("more than {MAX_DEPTH} levels of nesting")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.budget.node()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null, a boolean, a number, text, a list, or a mapping")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(match Number::from_f64(value) {
            Some(number) => Value::Number(number),
            None if value.is_nan() => Value::String(".nan".to_owned()),
            None => Value::String(if value > 0.0 { ".inf" } else { "-.inf" }.to_owned()),
        })
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.budget.text(value).map(Value::String)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(inner)? {
            let Value::String(key) = key else {
                return Err(A::Error::custom(format_args!("a key that is not text (put {key} in quotes)")));
            };
            let value = entries.next_value_seed(inner)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} occurs twice in one mapping")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use serde_json::json;

    fn refused(text: &str, says: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(says), "\"{error}\" does not say \"{says}\"");
    }

    #[test]
    fn ordinary_documents_are_read_as_json() {
        let text = "%YAML 1.2\n---\nname: a\nlist: [1, -2, 2.5, true, null, ~, 'x']\nmap: {a: {b: c}}\n\
                    shared: &s {scale: 0.5}\nfirst: *s\nsecond: *s\ntext: |\n  two\n  lines\nempty:\n";
        let expected = json!({
            "name": "a", "list": [1, -2, 2.5, true, null, null, "x"], "map": {"a": {"b": "c"}},
            "shared": {"scale": 0.5}, "first": {"scale": 0.5}, "second": {"scale": 0.5},
            "text": "two\nlines\n", "empty": null,
        });
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn numbers_json_cannot_hold_stay_text() {
        let value = parse("[.inf, -.inf, .nan, 123456789012345678901234567890]").unwrap();
        assert_eq!(value, json!([".inf", "-.inf", ".nan", "123456789012345678901234567890"]));
    }

    #[test]
    fn aliases_are_counted_as_what_they_stand_for() {
        let text = format!("a: &a {}\nb: [{}]", "x".repeat(1_000_000), "*a, ".repeat(90_000));
        refused(&text, "bytes of text");
        // Nine levels of nine aliases: a billion values.
        let mut laughs = "a0: &a0 [x]\n".to_owned();
        for i in 1..=30 {
            laughs += &format!("a{i}: &a{i} [{}]\n", format!("*a{}, ", i - 1).repeat(9));
        }
        refused(&laughs, "limit exceeded");
        let wide = format!("a: &a [{}]\nb: [{}]", "x, ".repeat(1000), "*a, ".repeat(1000));
        refused(&wide, "values, with aliases expanded");
        refused("a: &a [*a]", "recursion limit");
        refused("a: &a {<<: *a}", "recursion limit");
    }

    #[test]
    fn nesting_is_bounded_before_it_is_scanned() {
        refused(&"[".repeat(100_000), "opening brackets");
        refused(&"{a: ".repeat(100_000), "opening brackets");
        // Closing brackets inside quotes do not close anything.
        refused(&"[']', ".repeat(100_000), "opening brackets");
        refused(&"[".repeat(9_000), "");
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        refused(&nested(200), "recursion limit");
        parse(&nested(100)).unwrap();
        refused(&"- ".repeat(1_000_000), "characters that separate");
        refused(&"- ".repeat(5_000), "recursion limit");
        refused(&"? ".repeat(1_000_000), "characters that separate");
        let indented: String = (0..1_500).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
        refused(&indented, "recursion limit");
        refused(&"-\n".repeat(1_000_000), "characters that separate");
        refused(&"a: {a: 1, b: [1, 2, 3]}\n".repeat(100_000), "opening brackets");
    }

    #[test]
    fn directives_and_tags_are_bounded() {
        let many: String = (0..100_000).map(|i| format!("%TAG !{i}! x\n")).collect();
        refused(&format!("{many}---\na: 1\n"), "directives");
        // An unknown tag has no meaning here.
        refused("a: !surprise b", "enum");
        refused(&format!("!{} a", "x".repeat(1_000_000)), "");
        assert_eq!(parse("a: !!str 1").unwrap(), json!({"a": "1"}));
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        refused("a: 1\na: 2\n", "twice");
        refused("1: 2\n", "not text");
        refused("[1, 2]: 3\n", "not text");
        refused("a: 1\n---\nb: 2\n", "more than one document");
        assert_eq!(parse("").unwrap(), Value::Null);
        refused("a: [", "");
    }
}
