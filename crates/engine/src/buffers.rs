//! Named tensors that stay in the engine from one run to the next.

use crate::{CompileReport, EngineError, Session};
use cytoscope_graph::Tensor;
use cytoscope_profile::DeviceTraffic;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;

/// A tensor in the memory of a device, which is freed when this is dropped.
pub trait DeviceTensor: Send {
    /// Returns the length of each axis, in the order of the graph.
    fn shape(&self) -> &[usize];

    /// Copies the tensor to the host.
    ///
    /// # Errors
    /// [`EngineError::Device`] or [`EngineError::OutOfMemory`] if the device fails.
    fn read(&self) -> Result<Tensor, EngineError>;

    /// Returns the tensor for the engine that made it, which knows its type.
    fn as_any(&self) -> &dyn Any;
}

/// A tensor in the memory of the host or of a device.
pub enum Content {
    /// In the host's memory.
    Host(Tensor),
    /// In the memory of a device.
    Device(Box<dyn DeviceTensor>),
}

impl Content {
    /// Moves the tensor to the host, if it is not there, and returns it.
    ///
    /// # Errors
    /// Same as [`DeviceTensor::read`].
    pub fn host_mut(&mut self) -> Result<&mut Tensor, EngineError> {
        let copied = match self {
            Self::Host(_) => None,
            Self::Device(tensor) => Some(tensor.read()?),
        };
        if let Some(copied) = copied {
            *self = Self::Host(copied);
        }
        match self {
            Self::Host(tensor) => Ok(tensor),
            Self::Device(_) => Err(missing("a tensor of the host")),
        }
    }

    /// Returns the tensor, copied from the device if it is there.
    ///
    /// # Errors
    /// Same as [`DeviceTensor::read`].
    pub(crate) fn into_host(self) -> Result<Tensor, EngineError> {
        match self {
            Self::Host(tensor) => Ok(tensor),
            Self::Device(tensor) => tensor.read(),
        }
    }
}

/// A session on a device that reads and leaves tensors in the memory of that device.
pub trait ResidentSession {
    /// Runs the graph once. Inputs and outputs are in graph order. Those of the host that have true in `keep_inputs` are
    /// replaced by tensors on the device; outputs that have true in `keep_outputs` stay there.
    ///
    /// # Errors
    /// Same as [`Session::run`]; the inputs then still hold their values.
    fn run_resident(
        &mut self,
        inputs: &mut [Content],
        keep_inputs: &[bool],
        keep_outputs: &[bool],
    ) -> Result<Vec<Content>, EngineError>;
}

/// Named tensors that several sessions read and replace: the parameters of a network and the state of their optimizer.
/// Callers pass and receive only the inputs and outputs that are not bound to a buffer.
///
/// Buffers are bound in host memory, which is that of the CPU engine: nothing is copied there. The first session on
/// another device that reads or replaces a buffer leaves it in the memory of its device.
#[derive(Default)]
pub struct Buffers {
    contents: BTreeMap<String, Content>,
    downloads: Downloads,
}

/// Counts the buffers that are copied from devices.
#[derive(Default)]
struct Downloads(Cell<DeviceTraffic>);

impl Downloads {
    /// Counts the copy of a tensor to the host, unless it is there already.
    fn count(&self, content: &Content) {
        if let Content::Device(tensor) = content {
            let elements = tensor.shape().iter().fold(1u64, |n, len| n.saturating_mul(*len as u64));
            let mut counted = self.0.get();
            counted.downloads = counted.downloads.saturating_add(1);
            // Tensors on devices consist of 32-bit floats.
            let bytes = elements.saturating_mul(size_of::<f32>() as u64);
            counted.downloaded_bytes = counted.downloaded_bytes.saturating_add(bytes);
            self.0.set(counted);
        }
    }
}

/// A session that takes some of its inputs from buffers and writes some of its outputs to them.
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

    /// Returns what has passed between the host and the device; see [`Session::traffic`].
    pub fn traffic(&self) -> Option<DeviceTraffic> {
        self.session.traffic()
    }

    /// Runs the session on all its inputs, which keep their values.
    fn run(&mut self, inputs: &mut Vec<Content>) -> Result<Vec<Content>, EngineError> {
        let are_bound = |names: &[Option<String>]| names.iter().map(Option::is_some).collect::<Vec<bool>>();
        if let Some(resident) = self.session.resident() {
            return resident.run_resident(inputs, &are_bound(&self.inputs), &are_bound(&self.outputs));
        }
        for content in inputs.iter_mut() {
            content.host_mut()?;
        }
        let tensors = std::mem::take(inputs).into_iter().map(Content::into_host).collect::<Result<Vec<Tensor>, _>>()?;
        let made = self.session.run(&tensors);
        inputs.extend(tensors.into_iter().map(Content::Host));
        Ok(made?.into_iter().map(Content::Host).collect())
    }
}

impl Buffers {
    /// Sets the buffer `name`, replacing what it holds.
    pub fn bind(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.contents.insert(name.into(), Content::Host(tensor));
    }

    /// Returns a copy of a buffer's content.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there is no such buffer; as [`DeviceTensor::read`] if it is on a device.
    pub fn read(&self, name: &str) -> Result<Tensor, EngineError> {
        let content = self.contents.get(name).ok_or_else(|| missing(name))?;
        self.downloads.count(content);
        match content {
            Content::Host(tensor) => Ok(tensor.clone()),
            Content::Device(tensor) => tensor.read(),
        }
    }

    /// Moves a buffer to the host, if it is not there, and returns its content.
    ///
    /// # Errors
    /// Same as [`Buffers::read`].
    pub fn host_mut(&mut self, name: &str) -> Result<&mut Tensor, EngineError> {
        let content = self.contents.get_mut(name).ok_or_else(|| missing(name))?;
        self.downloads.count(content);
        content.host_mut()
    }

    /// Removes a buffer and returns its content, copied from the device if it is there.
    ///
    /// # Errors
    /// Same as [`Buffers::read`].
    pub fn take(&mut self, name: &str) -> Result<Tensor, EngineError> {
        let content = self.contents.remove(name).ok_or_else(|| missing(name))?;
        self.downloads.count(&content);
        content.into_host()
    }

    /// Removes a buffer, if it exists, without copying its content.
    pub fn discard(&mut self, name: &str) {
        self.contents.remove(name);
    }

    /// Moves the content of a buffer to another one, whose content is replaced.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there is no buffer `from`.
    pub fn rename(&mut self, from: &str, to: impl Into<String>) -> Result<(), EngineError> {
        let content = self.contents.remove(from).ok_or_else(|| missing(from))?;
        self.contents.insert(to.into(), content);
        Ok(())
    }

    /// Returns how many buffers were copied from devices to the host, and their bytes; the sessions count the other traffic.
    pub fn downloads(&self) -> DeviceTraffic {
        self.downloads.0.get()
    }

    /// Runs a session once on its buffers and `given`, the inputs without a buffer in graph order. Outputs with a buffer
    /// replace it; the others are returned in graph order. If the session fails, no buffer changes.
    ///
    /// # Errors
    /// [`EngineError::Input`] if a buffer does not exist or the number of given tensors is wrong; errors of
    /// [`Session::run`].
    pub fn step(&mut self, session: &mut BoundSession, given: Vec<Tensor>) -> Result<Vec<Tensor>, EngineError> {
        if let Some(name) = session.inputs.iter().flatten().find(|name| !self.contents.contains_key(*name)) {
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
                Some(name) => self.contents.remove(name),
                None => given.next().map(Content::Host),
            });
        }
        if session.session.resident().is_none() {
            // The session of the host gets copies.
            inputs.iter().for_each(|content| self.downloads.count(content));
        }
        let made = session.run(&mut inputs);
        for (name, content) in session.inputs.iter().zip(inputs) {
            if let Some(name) = name {
                self.contents.insert(name.clone(), content);
            }
        }
        let mut returned = Vec::new();
        for (name, content) in session.outputs.iter().zip(made?) {
            match name {
                Some(name) => {
                    self.contents.insert(name.clone(), content);
                }
                None => returned.push(content.into_host()?),
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
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        assert_eq!(buffers.read("total").unwrap(), one(13.0));
    }

    #[test]
    fn a_failed_step_leaves_the_buffers_as_they_were() {
        let total = || Some("total".to_owned());
        let mut sum = BoundSession::new(Box::new(Sum::default()), vec![total(), None], vec![total(), None]);
        let mut buffers = Buffers::default();
        buffers.bind("total", one(1.0));
        assert!(buffers.step(&mut sum, vec![one(-2.0)]).is_err());
        assert!(buffers.step(&mut sum, Vec::new()).is_err(), "an input is missing");
        assert_eq!(buffers.read("total").unwrap(), one(1.0));
    }

    /// A tensor that counts how often it is copied to the host.
    struct OnDevice(Tensor, Arc<AtomicUsize>);

    impl DeviceTensor for OnDevice {
        fn shape(&self) -> &[usize] {
            self.0.shape()
        }

        fn read(&self) -> Result<Tensor, EngineError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(self.0.clone())
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// [`Sum`] on a device that counts copies in both directions.
    #[derive(Default)]
    struct DeviceSum {
        sum: Sum,
        uploads: Arc<AtomicUsize>,
        downloads: Arc<AtomicUsize>,
    }

    impl Session for DeviceSum {
        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
            self.sum.run(inputs)
        }

        fn report(&self) -> &CompileReport {
            self.sum.report()
        }

        fn resident(&mut self) -> Option<&mut dyn ResidentSession> {
            Some(self)
        }
    }

    impl ResidentSession for DeviceSum {
        fn run_resident(
            &mut self,
            inputs: &mut [Content],
            keep_inputs: &[bool],
            keep_outputs: &[bool],
        ) -> Result<Vec<Content>, EngineError> {
            let mut tensors = Vec::new();
            for (content, keep) in inputs.iter_mut().zip(keep_inputs) {
                let tensor = match content {
                    Content::Host(tensor) => tensor.clone(),
                    Content::Device(tensor) => tensor.as_any().downcast_ref::<OnDevice>().unwrap().0.clone(),
                };
                if matches!(content, Content::Host(_)) {
                    self.uploads.fetch_add(1, Ordering::Relaxed);
                }
                if *keep {
                    *content = Content::Device(Box::new(OnDevice(tensor.clone(), Arc::clone(&self.downloads))));
                }
                tensors.push(tensor);
            }
            let made = self.sum.run(&tensors)?.into_iter().zip(keep_outputs);
            let downloads = &self.downloads;
            Ok(made
                .map(|(tensor, keep)| match keep {
                    true => Content::Device(Box::new(OnDevice(tensor, Arc::clone(downloads)))),
                    false => Content::Host(tensor),
                })
                .collect())
        }
    }

    #[test]
    fn buffers_stay_on_a_device_until_they_are_read() {
        let total = || Some("total".to_owned());
        let sum = DeviceSum::default();
        let (uploads, downloads) = (Arc::clone(&sum.uploads), Arc::clone(&sum.downloads));
        let mut sum = BoundSession::new(Box::new(sum), vec![None, total()], vec![total(), None]);
        let mut buffers = Buffers::default();
        buffers.bind("total", one(10.0));
        for _ in 0..3 {
            assert_eq!(buffers.step(&mut sum, vec![one(1.0)]).unwrap(), [one(2.0)]);
        }
        let counted = || (uploads.load(Ordering::Relaxed), downloads.load(Ordering::Relaxed));
        assert_eq!(counted(), (4, 0), "the buffer is uploaded once");
        assert_eq!(buffers.read("total").unwrap(), one(13.0));
        buffers.rename("total", "sum").unwrap();
        assert_eq!(*buffers.host_mut("sum").unwrap(), one(13.0));
        assert_eq!((counted(), buffers.read("total").is_err()), ((4, 2), true));
        assert_eq!(*buffers.host_mut("sum").unwrap(), one(13.0), "on the host already");
        let expected = DeviceTraffic { downloads: 2, downloaded_bytes: 8, ..DeviceTraffic::default() };
        assert_eq!(buffers.downloads(), expected);
        // A session of the host takes over.
        let name = || Some("sum".to_owned());
        let mut host = BoundSession::new(Box::new(Sum::default()), vec![None, name()], vec![name(), None]);
        buffers.step(&mut host, vec![one(1.0)]).unwrap();
        assert_eq!(buffers.read("sum").unwrap(), one(14.0));
        assert_eq!(buffers.downloads(), expected);
    }
}
