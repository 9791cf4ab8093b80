//! Slabs: pieces of a volume that stay in device memory, with the results of their tiles.

use super::{DeviceMemory, DeviceSession, Feed, Held, Sums, bad_slab, internal, unusable};
use crate::form::{count, described, described_voxels};
use crate::kernels::DeviceBackend;
use crate::plan::Output;
use burn_tensor::Tensor;
use cytoscope_engine::{EngineError, SlabSession};
use cytoscope_graph::{ElementType, Tensor as HostTensor};
use cytoscope_profile::{Stage, bytes_text};
use std::ops::Range;

/// Number of runs that are queued before the session waits for the device, so that the caller can end the work.
const MAX_UNWAITED_RUNS: usize = 4;

impl<B: DeviceBackend> SlabSession for DeviceSession<B> {
    fn slab_limit_bytes(&self) -> u64 {
        self.slab_limit_bytes
    }

    fn load(&mut self, kept_planes: usize, planes: HostTensor) -> Result<(), EngineError> {
        let tile = self.tile_form()?;
        let found = planes.shape().to_vec();
        let form = match found.as_slice() {
            &[channels, depth, rows, columns] if channels == tile[1] && depth > 0 => {
                [1, channels, depth, rows, columns]
            }
            _ => {
                return Err(bad_slab(
                    format!("planes of shape [{}, planes, rows, columns]", tile[1]),
                    format!("{found:?}"),
                ));
            }
        };
        let slab_bytes = count(&form) / form[2] * kept_planes.saturating_add(form[2]) * size_of::<f32>();
        if slab_bytes as u64 > self.slab_limit_bytes {
            return Err(self.too_large(slab_bytes as u64));
        }
        let Some(values) = planes.into_f32() else {
            return Err(bad_slab(ElementType::F32.to_string(), "another type".to_owned()));
        };
        let kept = match &self.memory {
            DeviceMemory::Held(Held { slab: Some(slab), .. }) => slab.dims(),
            _ => [0; 5],
        };
        if kept_planes > 0 && (kept_planes > kept[2] || [kept[1], kept[3], kept[4]] != [form[1], form[3], form[4]]) {
            return Err(bad_slab(format!("planes like those of the slab, {}", described(&kept)), described(&form)));
        }
        self.upload_weights(false)?;
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let earlier = held.slab.take();
        let (id, stream, transfers, waits) = (self.id, self.stream, &self.transfers, self.waits);
        let span = self.recorder.span(Stage::Upload, "slab").bytes(values.len() * size_of::<f32>());
        let slab = self.watch.guard(id, || {
            stream.executes(|| {
                let planes = transfers.upload(values, form);
                let slab = match earlier {
                    Some(earlier) if kept_planes > 0 => {
                        let last = earlier.slice_dim(2, kept[2] - kept_planes..kept[2]);
                        Tensor::cat(vec![last, planes], 2)
                    }
                    _ => planes,
                };
                // Errors must be seen here: those of earlier work are lost when kernels are timed.
                if waits {
                    transfers.synchronize()?;
                }
                Ok(slab)
            })
        });
        drop(span);
        let slab = self.release_if_failed(slab)?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.slab = Some(slab);
        }
        Ok(())
    }

    fn run_tiles(&mut self, starts: &[[usize; 3]]) -> Result<Vec<HostTensor>, EngineError> {
        self.check_tiles(starts)?;
        self.run_on(Feed::Tiles(starts))
    }

    fn run_kept(
        &mut self,
        starts: &[[usize; 3]],
        output: usize,
        kept: &[[Range<usize>; 3]],
    ) -> Result<(), EngineError> {
        self.check_tiles(starts)?;
        let tile = self.tile_form()?;
        let value = match self.program.outputs.get(output) {
            Some(Output::Value { value, .. }) if kept.len() <= starts.len() => *value,
            _ => return Err(bad_slab("a computed output and tiles to keep".to_owned(), format!("output {output}"))),
        };
        let waits = self.waits || self.unwaited_runs >= MAX_UNWAITED_RUNS;
        let parts = self.run_with(Feed::Tiles(starts), waits, |session, values, _| {
            let tensor = values.get(&value).ok_or_else(|| internal("outputs", "an output was not computed"))?;
            let found = tensor.dims();
            if found[0] != tile[0] || found[2..] != tile[2..] {
                return Err(bad_slab(format!("{} tiles of {}", tile[0], described_voxels(&tile)), described(&found)));
            }
            let parts = B::copy_parts(tensor, kept, |table| session.transfers.upload_table(table));
            if waits {
                session.transfers.synchronize()?;
            }
            parts.ok_or_else(|| bad_slab(format!("parts of tiles of {}", described_voxels(&tile)), format!("{kept:?}")))
        })?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.kept.extend(parts);
        }
        self.unwaited_runs = if waits { 0 } else { self.unwaited_runs + 1 };
        Ok(())
    }

    fn take_kept(&mut self, columns: usize) -> Result<HostTensor, EngineError> {
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let parts = std::mem::take(&mut held.kept);
        if parts.is_empty() || columns == 0 || !parts.len().is_multiple_of(columns) {
            return Err(bad_slab(format!("rows of {columns} tiles"), format!("{} tiles", parts.len())));
        }
        let (id, stream, transfers, waits) = (self.id, self.stream, &self.transfers, self.waits);
        let mut span = self.recorder.span(Stage::Download, "slab");
        let taken = self.tuning.reporting_compiling(&self.listener, id, || {
            self.watch.guard(id, || {
                stream.executes(|| {
                    let count = parts.len();
                    let joined = B::join_parts(parts, columns)
                        .ok_or_else(|| bad_slab(format!("rows of {columns} tiles"), format!("{count} tiles")))?;
                    let shape = joined.dims()[1..].to_vec();
                    if !waits {
                        // Errors of the runs before are seen here.
                        transfers.synchronize()?;
                    }
                    Ok((shape, transfers.download(joined)?))
                })
            })
        });
        if taken.is_ok() {
            self.tuning.end_compiling();
        }
        span.add_bytes(taken.as_ref().map_or(0, |(_, values)| values.len() * size_of::<f32>()));
        drop(span);
        let (shape, values) = self.release_if_failed(taken)?;
        self.unwaited_runs = 0;
        Ok(HostTensor::new(shape, values)?)
    }

    fn begin_sums(&mut self, weights: HostTensor, shape: [usize; 4]) -> Result<(), EngineError> {
        let tile = self.tile_form()?;
        let [channels, depth, rows, columns] = shape;
        let (form, found) = ([1, channels, depth, rows, columns], weights.shape().to_vec());
        if found[..] != tile[2..] || depth != tile[2] || form.contains(&0) {
            let expected = format!("weights and sums for tiles of {}", described_voxels(&tile));
            return Err(bad_slab(expected, format!("weights {found:?}, sums {shape:?}")));
        }
        let sums_bytes = (count(&form) * size_of::<f32>()) as u64;
        if sums_bytes > self.slab_limit_bytes {
            return Err(self.too_large(sums_bytes));
        }
        let Some(values) = weights.into_f32() else {
            return Err(bad_slab(ElementType::F32.to_string(), "another type".to_owned()));
        };
        self.upload_weights(false)?;
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let earlier = held.sums.take();
        let (id, stream, transfers, waits) = (self.id, self.stream, &self.transfers, self.waits);
        let made = self.watch.guard(id, || {
            stream.executes(|| {
                drop(earlier);
                let total = Tensor::zeros(form, transfers.device());
                let weights = transfers.upload(values, [1, 1, tile[2], tile[3], tile[4]]);
                // Errors must be seen here: those of earlier work are lost when kernels are timed.
                if waits {
                    transfers.synchronize()?;
                }
                Ok(Sums { total, weights })
            })
        });
        let made = self.release_if_failed(made)?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.sums = Some(made);
        }
        Ok(())
    }

    fn run_summed(&mut self, starts: &[[usize; 3]], output: usize, used: usize) -> Result<(), EngineError> {
        self.check_tiles(starts)?;
        let waits = self.waits || self.unwaited_runs >= MAX_UNWAITED_RUNS;
        let tile = self.tile_form()?;
        let value = match self.program.outputs.get(output) {
            Some(Output::Value { value, .. }) if used <= starts.len() => *value,
            _ => return Err(bad_slab("a computed output and tiles to add".to_owned(), format!("output {output}"))),
        };
        // A run is repeated if kernels were timed, so its results are added afterwards.
        let tiles = self.run_with(Feed::Tiles(starts), waits, |session, values, _| {
            let tensor = values.get(&value).ok_or_else(|| internal("outputs", "an output was not computed"))?;
            let found = tensor.dims();
            if found[0] != tile[0] || found[2..] != tile[2..] {
                return Err(bad_slab(format!("{} tiles of {}", tile[0], described_voxels(&tile)), described(&found)));
            }
            if waits {
                session.transfers.synchronize()?;
            }
            Ok(tensor.clone())
        })?;
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let earlier = held.sums.take();
        let (id, stream, transfers, times_kernels) = (self.id, self.stream, &self.transfers, self.waits);
        let added = self.watch.guard(id, || {
            stream.executes(move || {
                let none = || bad_slab("sums".to_owned(), "none".to_owned());
                let Sums { mut total, weights } = earlier.ok_or_else(none)?;
                let form = total.dims();
                for (sample, &[_, row, column]) in starts.iter().take(used).enumerate() {
                    let sum = B::add_weighted(total, &tiles, sample, &weights, [row, column]);
                    total = sum.ok_or_else(|| bad_slab(described(&form), described(&tiles.dims())))?;
                }
                drop(tiles);
                // Errors must be seen here: those of earlier work are lost when kernels are timed.
                if times_kernels {
                    transfers.synchronize()?;
                }
                Ok(Sums { total, weights })
            })
        });
        let added = self.release_if_failed(added)?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.sums = Some(added);
        }
        self.unwaited_runs = if waits { 0 } else { self.unwaited_runs + 1 };
        Ok(())
    }

    fn take_sums(&mut self, planes: usize) -> Result<HostTensor, EngineError> {
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let form = held.sums.as_ref().map_or([0; 5], |sums| sums.total.dims());
        if planes == 0 || planes > form[2] {
            return Err(bad_slab(format!("at most {} planes of sums", form[2]), planes.to_string()));
        }
        let earlier = held.sums.take();
        let (id, stream, transfers, waits) = (self.id, self.stream, &self.transfers, self.waits);
        let mut span = self.recorder.span(Stage::Download, "slab");
        let taken = self.tuning.reporting_compiling(&self.listener, id, || {
            self.watch.guard(id, || {
                stream.executes(move || {
                    let Sums { total, weights } = earlier.ok_or_else(|| internal("sums", "they were taken"))?;
                    let first = total.clone().slice_dim(2, 0..planes);
                    let [_, channels, depth, rows, columns] = form;
                    let empty = Tensor::zeros([1, channels, planes, rows, columns], transfers.device());
                    let total = if planes < depth {
                        Tensor::cat(vec![total.slice_dim(2, planes..depth), empty], 2)
                    } else {
                        empty
                    };
                    if !waits {
                        // Errors of the runs before are seen here.
                        transfers.synchronize()?;
                    }
                    Ok((transfers.download(first)?, Sums { total, weights }))
                })
            })
        });
        if taken.is_ok() {
            self.tuning.end_compiling();
        }
        span.add_bytes(taken.as_ref().map_or(0, |(values, _)| values.len() * size_of::<f32>()));
        drop(span);
        let (values, sums) = self.release_if_failed(taken)?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.sums = Some(sums);
        }
        self.unwaited_runs = 0;
        Ok(HostTensor::new([form[1], planes, form[3], form[4]], values)?)
    }
}

impl<B: DeviceBackend> DeviceSession<B> {
    /// Returns the error for a slab, or for sums, of `bytes`.
    fn too_large(&self, bytes: u64) -> EngineError {
        bad_slab(format!("at most {}", bytes_text(self.slab_limit_bytes)), bytes_text(bytes))
    }

    /// Refuses positions unless there is one for each sample and all tiles lie inside the slab.
    fn check_tiles(&self, starts: &[[usize; 3]]) -> Result<(), EngineError> {
        let tile = self.tile_form()?;
        let DeviceMemory::Held(Held { slab: Some(slab), .. }) = &self.memory else {
            return Err(bad_slab("a slab".to_owned(), "none".to_owned()));
        };
        let slab = slab.dims();
        let is_inside = |start: &[usize; 3]| {
            (0..3).all(|a| start[a].checked_add(tile[a + 2]).is_some_and(|end| end <= slab[a + 2]))
        };
        if starts.len() != tile[0] || !starts.iter().all(is_inside) {
            return Err(bad_slab(
                format!("{} tiles of {} inside {}", tile[0], described_voxels(&tile), described(&slab)),
                format!("{starts:?}"),
            ));
        }
        Ok(())
    }
}
