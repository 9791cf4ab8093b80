//! Checks a trace against Chrome's trace event format, which Perfetto reads.
//!
//! Written from the format's description ("Trace Event Format", Google) without the program's own writer: required fields
//! of each phase and their types, nesting of complete events and of begin and end events, counters, instants, metadata.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Tolerance in µs when times are compared: they are sums of floats.
const ROUNDING_US: f64 = 2e-3;

/// A track: process and thread.
type Track = (i64, i64);

/// Returns what violates the format, with the number of the event; empty for a valid trace. Besides what the format
/// requires, every process and every track with complete events must have a name.
pub fn problems(trace: &Value) -> Vec<String> {
    let events = match trace {
        Value::Array(events) => events,
        Value::Object(whole) => {
            if let Some(unit) = whole.get("displayTimeUnit")
                && unit != "ms"
                && unit != "ns"
            {
                return vec![format!("displayTimeUnit is {unit}, expected ms or ns")];
            }
            match whole.get("traceEvents") {
                Some(Value::Array(events)) => events,
                other => return vec![format!("traceEvents is {other:?}, expected an array")],
            }
        }
        _ => return vec!["expected an array of events, or an object with traceEvents".to_owned()],
    };
    let mut check = Check::default();
    for (number, event) in events.iter().enumerate() {
        if let Err(problem) = check.event(event) {
            check.problems.push(format!("event {number}: {problem}: {event}"));
        }
    }
    check.finish()
}

#[derive(Default)]
struct Check {
    problems: Vec<String>,
    /// Start, end and name of the complete events of each track.
    complete: BTreeMap<Track, Vec<(f64, f64, String)>>,
    /// Time and name of the begin events of each track that have not ended.
    started: BTreeMap<Track, Vec<(f64, String)>>,
    /// Last time of a begin or end event of each track.
    last: BTreeMap<Track, f64>,
    processes: BTreeSet<i64>,
    named_processes: BTreeSet<i64>,
    named_tracks: BTreeSet<Track>,
}

impl Check {
    fn event(&mut self, event: &Value) -> Result<(), String> {
        let Value::Object(event) = event else { return Err("expected an object".to_owned()) };
        let phase = event.get("ph").and_then(Value::as_str).ok_or("ph is missing or not a string")?;
        let pid = integer(event, "pid")?;
        self.processes.insert(pid);
        for field in ["name", "cat", "s"] {
            if event.get(field).is_some_and(|value| !value.is_string()) {
                return Err(format!("{field} is not a string"));
            }
        }
        if event.get("args").is_some_and(|args| !args.is_object()) {
            return Err("args is not an object".to_owned());
        }
        match phase {
            "X" => self.complete(event, pid),
            "B" | "E" => self.begin_or_end(event, pid, phase == "B"),
            "C" => counter(event),
            "i" | "I" => instant(event),
            "M" => self.metadata(event, pid),
            other => Err(format!("phase {other} is not expected")),
        }
    }

    fn complete(&mut self, event: &Map<String, Value>, pid: i64) -> Result<(), String> {
        let (name, start, tid) = (name(event)?, time(event, "ts")?, integer(event, "tid")?);
        let end = start + time(event, "dur")?;
        self.complete.entry((pid, tid)).or_default().push((start, end, name));
        Ok(())
    }

    fn begin_or_end(&mut self, event: &Map<String, Value>, pid: i64, begins: bool) -> Result<(), String> {
        let (at, track) = (time(event, "ts")?, (pid, integer(event, "tid")?));
        let last = self.last.insert(track, at).unwrap_or(0.0);
        if at < last {
            return Err(format!("begin and end events of a track must be in order of time, found {at} after {last}"));
        }
        let started = self.started.entry(track).or_default();
        if begins {
            started.push((at, name(event)?));
            return Ok(());
        }
        let (_, started) = started.pop().ok_or("an end without a begin")?;
        match event.get("name").and_then(Value::as_str) {
            Some(ended) if ended != started => Err(format!("\"{ended}\" ends inside \"{started}\"")),
            _ => Ok(()),
        }
    }

    fn metadata(&mut self, event: &Map<String, Value>, pid: i64) -> Result<(), String> {
        let argument = |key: &str| {
            event.get("args").and_then(|args| args.get(key)).ok_or_else(|| format!("args.{key} is missing"))
        };
        let text = |key: &str| {
            let is_text = argument(key)?.as_str().is_some_and(|text| !text.is_empty());
            if is_text { Ok(()) } else { Err(format!("args.{key} is not a text")) }
        };
        let number = |key: &str| {
            if argument(key)?.is_i64() || argument(key)?.is_u64() {
                Ok(())
            } else {
                Err(format!("args.{key} is not an integer"))
            }
        };
        match name(event)?.as_str() {
            "process_name" => {
                self.named_processes.insert(pid);
                text("name")
            }
            "process_labels" => text("labels"),
            "process_sort_index" => number("sort_index"),
            "thread_name" => {
                self.named_tracks.insert((pid, integer(event, "tid")?));
                text("name")
            }
            "thread_sort_index" => integer(event, "tid").and_then(|_| number("sort_index")),
            other => Err(format!("metadata {other} is not known")),
        }
    }

    fn finish(mut self) -> Vec<String> {
        for (track, events) in &mut self.complete {
            events.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
            let mut open: Vec<(f64, String)> = Vec::new();
            for (start, end, name) in events.iter() {
                while open.last().is_some_and(|(until, _)| *until <= start + ROUNDING_US) {
                    open.pop();
                }
                if let Some((until, outer)) = open.last().filter(|(until, _)| *end > until + ROUNDING_US) {
                    self.problems.push(format!(
                        "track {track:?}: \"{name}\" ({start} to {end}) neither lies in \"{outer}\", which ends at {until}, \
                         nor follows it"
                    ));
                }
                open.push((*end, name.clone()));
            }
            if !self.named_tracks.contains(track) {
                self.problems.push(format!("track {track:?} has no thread_name"));
            }
        }
        for (track, started) in self.started.iter().filter(|(_, started)| !started.is_empty()) {
            self.problems.push(format!("track {track:?}: {started:?} never end"));
        }
        for pid in self.processes.difference(&self.named_processes) {
            self.problems.push(format!("process {pid} has no process_name"));
        }
        self.problems
    }
}

fn counter(event: &Map<String, Value>) -> Result<(), String> {
    name(event)?;
    time(event, "ts")?;
    match event.get("args") {
        Some(Value::Object(series)) if !series.is_empty() && series.values().all(Value::is_number) => Ok(()),
        _ => Err("a counter needs args with numbers".to_owned()),
    }
}

fn instant(event: &Map<String, Value>) -> Result<(), String> {
    name(event)?;
    time(event, "ts")?;
    match event.get("s").and_then(Value::as_str) {
        // The default scope is the thread.
        None | Some("t") => integer(event, "tid").map(|_| ()),
        Some("g" | "p") => Ok(()),
        Some(other) => Err(format!("the scope of an instant is {other}, expected g, p or t")),
    }
}

fn name(event: &Map<String, Value>) -> Result<String, String> {
    let name = event.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| "name is missing or empty".to_owned())
}

fn integer(event: &Map<String, Value>, field: &str) -> Result<i64, String> {
    event.get(field).and_then(Value::as_i64).ok_or_else(|| format!("{field} is missing or not an integer"))
}

/// Returns a time in µs.
fn time(event: &Map<String, Value>, field: &str) -> Result<f64, String> {
    let value = event.get(field).and_then(Value::as_f64).filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| format!("{field} is missing, negative or not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(events: Value) -> Vec<String> {
        let mut all = vec![
            json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "p"}}),
            json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "t"}}),
        ];
        all.extend(events.as_array().cloned().unwrap_or_default());
        problems(&json!({"traceEvents": all, "displayTimeUnit": "ms"}))
    }

    fn complete(name: &str, ts: f64, dur: f64) -> Value {
        json!({"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": dur})
    }

    #[test]
    fn valid_traces_have_no_problems() {
        let events = json!([
            complete("b", 2.0, 3.0),
            complete("a", 1.0, 9.0),
            complete("c", 5.0, 5.0),
            {"name": "memory", "ph": "C", "pid": 1, "ts": 4, "args": {"bytes": 5}},
            {"name": "mark", "ph": "i", "s": "p", "pid": 1, "ts": 4},
            {"name": "d", "ph": "B", "pid": 1, "tid": 2, "ts": 4},
            {"name": "d", "ph": "E", "pid": 1, "tid": 2, "ts": 6},
        ]);
        assert_eq!(with(events), Vec::<String>::new());
    }

    #[test]
    fn violations_are_found() {
        let cases = [
            (json!([complete("a", 1.0, 4.0), complete("b", 3.0, 4.0)]), "neither lies in"),
            (json!([complete("a", 1.0, -4.0)]), "dur"),
            (json!([complete("", 1.0, 4.0)]), "name"),
            (json!([{"name": "a", "ph": "X", "pid": 1, "tid": 9, "ts": 1, "dur": 1}]), "no thread_name"),
            (json!([{"name": "a", "ph": "X", "pid": 2, "tid": 1, "ts": 1, "dur": 1}]), "no process_name"),
            (json!([{"name": "a", "ph": "X", "pid": "1", "tid": 1, "ts": 1, "dur": 1}]), "pid"),
            (json!([{"name": "a", "ph": "C", "pid": 1, "ts": 1, "args": {"bytes": "5"}}]), "counter"),
            (json!([{"name": "a", "ph": "i", "s": "x", "pid": 1, "ts": 1}]), "scope"),
            (json!([{"name": "a", "ph": "B", "pid": 1, "tid": 1, "ts": 1}]), "never end"),
            (json!([{"name": "a", "ph": "E", "pid": 1, "tid": 1, "ts": 1}]), "without a begin"),
            (json!([{"name": "thread_name", "ph": "M", "pid": 1, "args": {"name": "t"}}]), "tid"),
            (json!([{"name": "a", "ph": "Q", "pid": 1}]), "phase"),
            (json!([5]), "object"),
        ];
        for (events, words) in cases {
            let found = with(events.clone());
            assert!(found.iter().any(|problem| problem.contains(words)), "{events}: {found:?}");
        }
        assert!(!problems(&json!({"traceEvents": 5})).is_empty());
    }
}
