//! Named tensors that stay in the engine from one run to the next.

use crate::{CompileReport, EngineError, Session};
use cytoscope_graph::Tensor;
use std::collections::BTreeMap;

/// Named tensors that several sessions read and replace: the parameters of a network and the state of their optimizer.
/// Callers pass and receive only the inputs and outputs that are not bound to a buffer.
///
/// Buffers are in host memory, which is that of the CPU engine: nothing is copied there. Sessions on other devices read
/// them at each step.
#[derive(Debug, Default)]
pub struct Buffers(BTreeMap<String, Tensor>);

/// A session, some of whose inputs and outputs are buffers.
pub struct BoundSession {
    session: Box<dyn Session>,
    inputs: Vec<Option<String>>,
    outputs: Vec<Option<String>>,
}

impl BoundSession {
    /// Binds a session to buffers: for each input and output of its graph, the name of the buffer that is read or
    /// replaced, or `None` if the caller passes or receives it. No two inputs have the same name.
    pub fn new(session: Box<dyn Session>, inputs: Vec<Option<String>>, outputs: Vec<Option<String>>) -> Self {
        Self { session, inputs, outputs }
    }

    /// Returns the compile report of the session.
    pub fn report(&self) -> &CompileReport {
        self.session.report()
    }
}

impl Buffers {
    /// Sets the buffer `name`, replacing what it holds.
    pub fn bind(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.0.insert(name.into(), tensor);
    }

    /// Returns the content of a buffer.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there is no such buffer.
    pub fn read(&self, name: &str) -> Result<&Tensor, EngineError> {
        self.0.get(name).ok_or_else(|| missing(name))
    }

    /// Runs a session once on its buffers and `given`, the inputs without a buffer in graph order. Outputs with a buffer
    /// replace it; the others are returned in graph order. If the session fails, no buffer changes.
    ///
    /// # Errors
    /// [`EngineError::Input`] if a buffer does not exist or the number of given tensors is wrong; errors of
    /// [`Session::run`].
    pub fn step(&mut self, session: &mut BoundSession, given: Vec<Tensor>) -> Result<Vec<Tensor>, EngineError> {
        if let Some(name) = session.inputs.iter().flatten().find(|name| !self.0.contains_key(*name)) {
            return Err(missing(name));
        }
        let expected = session.inputs.iter().filter(|name| name.is_none()).count();
        if given.len() != expected {
            return Err(EngineError::Input {
                name: "inputs".to_owned(),
                expected: format!("{expected} inputs"),
                got: given.len().to_string(),
            });
        }
        // Buffers are moved into the inputs and back, so that none is copied.
        let mut given = given.into_iter();
        let mut inputs = Vec::with_capacity(session.inputs.len());
        for name in &session.inputs {
            inputs.extend(match name {
                Some(name) => self.0.remove(name),
                None => given.next(),
            });
        }
        let made = session.session.run(&inputs);
        for (name, tensor) in session.inputs.iter().zip(inputs) {
            if let Some(name) = name {
                self.0.insert(name.clone(), tensor);
            }
        }
        let mut returned = Vec::new();
        for (name, tensor) in session.outputs.iter().zip(made?) {
            match name {
                Some(name) => {
                    self.0.insert(name.clone(), tensor);
                }
                None => returned.push(tensor),
            }
        }
        Ok(returned)
    }
}

fn missing(name: &str) -> EngineError {
    EngineError::Input { name: name.to_owned(), expected: "a buffer".to_owned(), got: "none".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of its inputs, and their number; fails on a negative sum.
    #[derive(Default)]
    struct Sum(CompileReport);

    impl Session for Sum {
        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            let sum: f64 = inputs.iter().flat_map(Tensor::to_f64_vec).sum();
            if sum < 0.0 {
                return Err(missing("sum"));
            }
            Ok(vec![Tensor::vector(vec![sum as f32]), Tensor::vector(vec![inputs.len() as f32])])
        }

        fn report(&self) -> &CompileReport {
            &self.0
        }
    }

    fn one(value: f32) -> Tensor {
        Tensor::vector(vec![value])
    }

    #[test]
    fn a_step_replaces_its_buffers_and_returns_the_other_outputs() {
        let total = || Some("total".to_owned());
        let mut sum = BoundSession::new(Box::new(Sum::default()), vec![None, total()], vec![total(), None]);
        let mut buffers = Buffers::default();
        assert!(buffers.step(&mut sum, vec![one(1.0)]).is_err(), "there is no buffer yet");
        buffers.bind("total", one(10.0));
        assert_eq!(buffers.step(&mut sum, vec![one(1.0)]).unwrap(), [one(2.0)]);
        assert_eq!(buffers.step(&mut sum, vec![one(2.0)]).unwrap(), [one(2.0)]);
        assert_eq!(buffers.read("total").unwrap(), &one(13.0));
    }

    #[test]
    fn a_failed_step_leaves_the_buffers_as_they_were() {
        let total = || Some("total".to_owned());
        let mut sum = BoundSession::new(Box::new(Sum::default()), vec![total(), None], vec![total(), None]);
        let mut buffers = Buffers::default();
        buffers.bind("total", one(1.0));
        assert!(buffers.step(&mut sum, vec![one(-2.0)]).is_err());
        assert!(buffers.step(&mut sum, Vec::new()).is_err(), "an input is missing");
        assert_eq!(buffers.read("total").unwrap(), &one(1.0));
    }
}
