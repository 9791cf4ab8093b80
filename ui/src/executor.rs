//! The thread that carries out disk effects, so that a slow disk never stops the window.

use crate::disk::{DiskEffect, DiskEvent};
use crate::effect::Wake;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Carries out disk effects one after another, in the order in which they were requested.
pub(crate) struct DiskExecutor {
    /// Effects for the thread; `None` if the system started none.
    effects: Option<Sender<DiskEffect>>,
    /// Results, also of effects that were carried out without the thread.
    events: (Sender<DiskEvent>, Receiver<DiskEvent>),
    thread: Option<JoinHandle<()>>,
    /// Number of effects whose results were not polled yet.
    in_progress: usize,
}

impl DiskExecutor {
    /// An executor that calls `wake` whenever a result is available.
    pub(crate) fn new(wake: &Wake) -> Self {
        let (effects, received) = channel::<DiskEffect>();
        let events = channel();
        let (sender, wake) = (events.0.clone(), Arc::clone(wake));
        let spawned = std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
            for effect in received {
                // Sending fails only if the window is closed; effects that were queued before are still carried out.
                let _ = sender.send(effect.run());
                wake();
            }
        });
        let thread = spawned
            .inspect_err(|error| {
                tracing::error!("the thread for disk work cannot be started, so disk work blocks the window: {error}")
            })
            .ok();
        Self { effects: thread.is_some().then_some(effects), events, thread, in_progress: 0 }
    }

    /// Queues an effect. Without a thread it is carried out at once.
    pub(crate) fn queue(&mut self, effect: DiskEffect) {
        self.in_progress += 1;
        let refused = match &self.effects {
            Some(effects) => effects.send(effect).err().map(|refused| refused.0),
            None => Some(effect),
        };
        if let Some(effect) = refused {
            // The receiver is in the same struct, so it exists.
            let _ = self.events.0.send(effect.run());
        }
    }

    /// Results since the last call, in order.
    pub(crate) fn poll(&mut self) -> Vec<DiskEvent> {
        let events: Vec<DiskEvent> = self.events.1.try_iter().collect();
        self.in_progress = self.in_progress.saturating_sub(events.len());
        events
    }

    /// Waits for the queued effects, and returns the results since the last poll.
    pub(crate) fn finish(&mut self) -> Vec<DiskEvent> {
        self.effects = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        self.poll()
    }

    /// Whether a result is still to come.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_progress > 0
    }
}

impl Drop for DiskExecutor {
    /// Waits for the queued effects, such as saving the settings.
    fn drop(&mut self) {
        self.finish();
    }
}
