//! Reading lines of limited length.

use std::io::{self, BufRead};

/// One read of a line.
pub(super) enum Incoming {
    Line(String),
    TooLong,
    NotText,
    End,
}

/// Reads a line of at most `limit` bytes. A longer line is skipped without holding it in memory.
pub(super) fn read_line(input: &mut impl BufRead, limit: usize) -> Incoming {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let part = match input.fill_buf() {
            Ok(part) => part,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!("the connection between window and engine process broke: {error}");
                return Incoming::End;
            }
        };
        if part.is_empty() {
            // An incomplete last line is ignored.
            return Incoming::End;
        }
        let end = part.iter().position(|b| *b == b'\n');
        let taken = end.unwrap_or(part.len());
        too_long |= line.len() + taken > limit;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(&part[..taken]);
        }
        input.consume(end.map_or(taken, |at| at + 1));
        if end.is_some() {
            return match (too_long, String::from_utf8(line)) {
                (true, _) => Incoming::TooLong,
                (false, Ok(text)) => Incoming::Line(text),
                (false, Err(_)) => Incoming::NotText,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_skipped() {
        let text: &[u8] = b"one\n\n12345678\n123456789\n\xff\n3\ncut off";
        // A small buffer, so that lines cross its end.
        let mut input = io::BufReader::with_capacity(3, Cursor::new(text));
        let mut lines = Vec::new();
        loop {
            lines.push(match read_line(&mut input, 8) {
                Incoming::Line(text) => text,
                Incoming::TooLong => "too long".to_owned(),
                Incoming::NotText => "no text".to_owned(),
                Incoming::End => break,
            });
        }
        assert_eq!(lines, ["one", "", "12345678", "too long", "no text", "3"]);
    }
}
