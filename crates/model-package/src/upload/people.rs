//! Authors and maintainers of a package that is uploaded.

use super::{Checker, given};
use serde_json::Value;

impl<'a> Checker<'a> {
    /// Checks authors, maintainers and packagers.
    pub(super) fn people(&mut self) {
        let (authors, maintainers) = (self.list("authors"), self.list("maintainers"));
        for (i, packager) in self.list("packaged_by").iter().enumerate() {
            let part = format!("packaged_by[{i}]");
            if given(packager, "name").is_none() {
                self.refuse(format!("{part}.name"), "is missing: give the name of this person, or remove the entry");
            }
            self.person(&part, packager);
        }
        for (i, author) in authors.iter().enumerate() {
            let part = format!("authors[{i}]");
            if given(author, "name").is_none() {
                self.refuse(format!("{part}.name"), "is missing: every author has a name");
            }
            self.person(&part, author);
        }
        for (i, maintainer) in maintainers.iter().enumerate() {
            let part = format!("maintainers[{i}]");
            if given(maintainer, "github_user").is_none() {
                let message = "is missing: give the GitHub user whom bioimage.io notifies of problems";
                self.refuse(format!("{part}.github_user"), message);
            }
            self.person(&part, maintainer);
        }
        if authors.is_empty() {
            self.warn("authors", "is missing: name those who made the model");
        } else if maintainers.is_empty() && authors.iter().all(|a| given(a, "github_user").is_none()) {
            let message = "is missing, and no author has a github_user: name the GitHub user who answers questions";
            self.warn("maintainers", message);
        }
    }

    /// Checks the fields that authors and maintainers have in common.
    pub(super) fn person(&mut self, part: &str, person: &'a Value) {
        for key in ["name", "affiliation", "github_user"] {
            let Some(value) = given(person, key) else { continue };
            let part = format!("{part}.{key}");
            let text = self.text(&part, value);
            match text {
                Some("") => self.warn(part, "is empty: fill it in, or remove it"),
                Some(text) if key == "name" && text.contains(['/', '\\']) => {
                    self.refuse(part, format!("is {text:?}: a slash is not allowed in a name"));
                }
                Some(text) if key == "github_user" && !is_github_user(text) => {
                    self.refuse(
                        part,
                        format!("is {text:?}, which is not a GitHub user name: give the name after github.com/"),
                    );
                }
                _ => {}
            }
        }
        if let Some(orcid) = given(person, "orcid")
            && !orcid.as_str().is_some_and(is_orcid)
        {
            let message =
                format!("is {orcid}: expected a valid ORCID iD such as 0000-0001-2345-6789, without an address");
            self.refuse(format!("{part}.orcid"), message);
        }
        if let Some(email) = given(person, "email")
            && !email.as_str().is_some_and(is_email)
        {
            self.refuse(format!("{part}.email"), format!("is {email}: expected an address such as ada@example.org"));
        }
    }
}

/// Whether a text is an ORCID iD: four groups of four digits whose last digit is the check digit of ISO 7064 MOD 11-2.
fn is_orcid(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_hyphen = |at: usize| [4, 9, 14].contains(&at);
    let mut check = 0u32;
    for (at, byte) in bytes.iter().enumerate() {
        let digit = match byte {
            b'-' if is_hyphen(at) => continue,
            b'0'..=b'9' if !is_hyphen(at) => u32::from(byte - b'0'),
            b'X' if at == 18 => 10,
            _ => return false,
        };
        check = (2 * check + digit) % 11;
    }
    bytes.len() == 19 && check == 1
}

/// Whether a text has the form of an email address.
pub(super) fn is_email(text: &str) -> bool {
    let Some((user, domain)) = text.split_once('@') else { return false };
    let is_plain = |text: &str| !text.is_empty() && !text.contains(['@', ' ']);
    is_plain(user) && is_plain(domain) && domain.contains('.') && !domain.starts_with('.') && !domain.ends_with('.')
}

/// Whether a text has the form of a GitHub user: up to 39 letters, digits and hyphens.
fn is_github_user(text: &str) -> bool {
    text.len() <= 39
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orcids_are_checked_with_their_last_digit() {
        // Examples of the ORCID documentation.
        for valid in ["0000-0001-2345-6789", "0000-0002-1694-233X", "0000-0002-1825-0097"] {
            assert!(is_orcid(valid), "{valid}");
        }
        for wrong in [
            "0000-0001-2345-6788",
            "0000000123456789",
            "https://orcid.org/0000-0001-2345-6789",
            "",
            "0000-0002-1694-23X3",
        ] {
            assert!(!is_orcid(wrong), "{wrong}");
        }
    }
}
