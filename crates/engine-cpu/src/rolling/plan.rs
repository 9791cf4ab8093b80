//! Chooses the slabs and bands of a pass.

use super::bands::bands;
use super::flow::{self, PassNeeds};
use super::plane_storage::{Need, PlaneStorage};
use super::program::{self, RollingProgram};
use super::{CpuRollingPlan, arena};
use crate::program::arena_bytes;
use crate::purpose::Purpose;
use crate::{Optimizations, prepare};
use cytoscope_engine::{Band, CompileOptions, EngineError, NotRolling};
use cytoscope_graph::{Graph, GraphError, GraphLimits};
use cytoscope_graph_passes::analysis;
use cytoscope_kernels::Isa;

/// Slabs that are tried, in multiples of the network's stride along Z. Divisors of the stride are tried as well.
const SLABS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// For buffers whose readers need planes side by side: additional capacity that is tried, relative to the planes that are kept
/// from slab to slab, and whether long buffers are rings.
const SLACK: [(f64, bool); 4] = [(0.0, false), (0.0, true), (0.35, true), (1.0, true)];
/// A buffer is long if it holds at least this many times the planes that are read together.
const LONG: usize = 2;
/// Maximum number of bands that are tried.
const MAX_BANDS: usize = 64;
/// Multiply-accumulate operations in the time in which one byte is moved.
const MACS_PER_BYTE: f64 = 20.0;
/// Multiply-accumulate operations in the time in which a kernel reads one byte that is no longer in its cache. With
/// short slabs, the planes in which the inputs of successive slabs overlap are read more often. With this value,
/// `nuclei` is computed in slabs of two planes in int8 and four in f32. On one thread of an AMD EPYC of the fifth
/// generation, their times are within 2 % of the fastest of 1, 2, 4 and 8 planes.
const MACS_PER_READ_BYTE: f64 = 12.0;
/// Multiply-accumulate operations in the time in which a step is started.
const MACS_PER_STEP: f64 = 1e6;
/// Factor of the cost that a plan may have for half the memory: a plan that needs less memory is preferred in proportion.
const COST_OF_HALF_THE_MEMORY: f64 = 1.05;

/// Slabs of a pass, with their cost.
struct Candidate {
    slab_planes: usize,
    /// The planes of each buffer.
    storages: Vec<PlaneStorage>,
    /// First word of each buffer.
    starts: Vec<usize>,
    arena_bytes: u64,
    moved_bytes: u64,
    /// Work in units of multiply-accumulate operations.
    cost: f64,
}

/// Plans a pass of a stack of shape N, C, Z, Y, X; see [`cytoscope_engine::Engine::plan_rolling`].
pub(crate) fn plan(
    isa: Isa,
    graph: &Graph,
    shape: &[usize],
    options: &CompileOptions,
) -> Result<CpuRollingPlan, NotRolling> {
    let [_, _, depth, rows, _] = shape[..] else {
        return Err(NotRolling::Interface { found: format!("an input of shape {shape:?}") });
    };
    let field = analysis::analyze(graph).map_err(EngineError::from)?.field;
    let (Some(along_z), Some(along_y)) = (field.axes.first(), field.axes.get(1)) else {
        return Err(NotRolling::Interface { found: format!("a network of {} spatial axes", field.axes.len()) });
    };
    let stride = along_z.multiple_of.max(1);
    let available_bytes = cytoscope_profile::available_bytes().unwrap_or(u64::MAX);
    let budget_bytes = options.memory_budget_bytes.unwrap_or(u64::MAX).min(available_bytes);
    let whole = lower(isa, graph, shape, options)?;
    let (untiled_macs, weight_bytes) = (whole.macs, whole.weight_bytes);
    let untiled_bytes = whole.largest_buffer_bytes().saturating_add(weight_bytes);
    let heights: Vec<usize> = whole.outputs.iter().filter_map(|o| o.shape.get(3).copied()).collect();
    let all = candidates(&whole, depth, stride);
    let mut least_bytes = all.iter().map(|c| c.arena_bytes).min().unwrap_or(u64::MAX);
    let finish = |program: RollingProgram, bands: Vec<Band>, best: Candidate| CpuRollingPlan {
        program,
        isa,
        options: options.clone(),
        shape: shape.to_vec(),
        moved_bytes: best.moved_bytes.saturating_mul(bands.len() as u64),
        bands,
        slab_planes: best.slab_planes,
        storages: best.storages,
        starts: best.starts,
        arena_bytes: best.arena_bytes,
        untiled_macs,
        untiled_bytes,
    };
    if let Some(best) = best(all, budget_bytes.saturating_sub(weight_bytes)) {
        return Ok(finish(whole, bands(rows, 1, along_y).unwrap_or_default(), best));
    }
    drop(whole);
    let mut tried = rows;
    for count in 2..=MAX_BANDS {
        let Some(bands) = bands(rows, count, along_y) else { break };
        let height = bands.first().map_or(rows, |band: &Band| band.fed.len());
        // The memory is at least proportional to the rows.
        let expected_bytes = (least_bytes as f64 * height as f64 / tried as f64) as u64;
        if height >= tried || expected_bytes.saturating_add(weight_bytes) > budget_bytes {
            continue;
        }
        let banded: Vec<usize> = shape.iter().enumerate().map(|(a, n)| if a == 3 { height } else { *n }).collect();
        let program = match lower(isa, graph, &banded, options) {
            Ok(program) => program,
            // A network with inputs of fixed lengths has no bands.
            Err(NotRolling::Engine(EngineError::Graph(error))) if !matches!(error, GraphError::Interrupted) => break,
            Err(error) => return Err(error),
        };
        // Rows of the outputs must correspond to rows of the stack, wherever a band starts.
        let step = along_y.multiple_of.max(1);
        let mut own = program.outputs.iter().filter_map(|o| o.shape.get(3)).zip(&heights);
        if !own.all(|(own, all)| own * rows == all * height && (all * step) % rows == 0) {
            break;
        }
        let all = candidates(&program, depth, stride);
        (tried, least_bytes) = (height, all.iter().map(|c| c.arena_bytes).min().unwrap_or(u64::MAX));
        if let Some(best) = best(all, budget_bytes.saturating_sub(program.weight_bytes)) {
            return Ok(finish(program, bands, best));
        }
    }
    Err(NotRolling::Budget { needed_bytes: least_bytes.saturating_add(weight_bytes), budget_bytes })
}

/// Returns the candidate with the best balance of cost and memory among those that fit the budget.
fn best(mut all: Vec<Candidate>, budget_bytes: u64) -> Option<Candidate> {
    all.retain(|c| c.arena_bytes <= budget_bytes);
    let balance =
        |c: &Candidate| c.cost.max(1.0).ln() + COST_OF_HALF_THE_MEMORY.ln() * (c.arena_bytes.max(1) as f64).log2();
    all.into_iter().min_by(|a, b| balance(a).total_cmp(&balance(b)))
}

/// Lowers a network for an input of this shape.
fn lower(isa: Isa, graph: &Graph, shape: &[usize], options: &CompileOptions) -> Result<RollingProgram, NotRolling> {
    let purpose = Purpose::inference(isa, options.precision, Optimizations::default())?;
    // A pass holds some planes of each tensor, never a whole tensor.
    let limits = GraphLimits { tensor_elements: usize::MAX, ..GraphLimits::default() };
    let prepared = prepare::prepare(graph, &[shape.to_vec()], purpose, &limits, &options.interrupt)?;
    program::lower(prepared, isa, &options.interrupt)
}

/// Returns the slabs to choose from, for a stack of `depth` planes and a network whose strides along Z have the product
/// `stride`.
fn candidates(program: &RollingProgram, depth: usize, stride: usize) -> Vec<Candidate> {
    let divisors = (1..stride).filter(|n| stride.is_multiple_of(*n));
    let mut slabs: Vec<usize> = divisors.chain(SLABS.iter().map(|n| n * stride)).map(|n| n.min(depth.max(1))).collect();
    slabs.dedup();
    slabs.into_iter().flat_map(|slab| slab_candidates(program, depth, slab)).collect()
}

/// Returns the candidates with slabs of `slab_planes` planes: one for each [`SLACK`].
fn slab_candidates(program: &RollingProgram, depth: usize, slab_planes: usize) -> Vec<Candidate> {
    let mut new_planes = vec![1; program.buffers.len()];
    for value in &program.flow.values {
        if let Some(new) = new_planes.get_mut(value.buffer) {
            *new = (slab_planes * value.extent).div_ceil(depth.max(1)).max(*new);
        }
    }
    let pass = flow::pass_needs(&program.flow, slab_planes);
    let ring_steps = program.ring_steps();
    let choices = SLACK.map(|(slack, with_rings)| {
        let storage = |((need, new), ring_step): ((&Need, &usize), &Option<usize>)| {
            if let Some(step) = ring_step.filter(|_| need.is_kept) {
                return PlaneStorage::plain_ring(need, step);
            }
            if with_rings && need.is_kept && need.held >= LONG * need.together {
                return PlaneStorage::ring(need);
            }
            // With capacity for more planes, those that are kept are moved less often.
            let kept = need.held.saturating_sub(*new);
            PlaneStorage::moving(need.held + (kept as f64 * slack / *new as f64) as usize * new)
        };
        pass.needs.iter().zip(&new_planes).zip(&ring_steps).map(storage).collect::<Vec<PlaneStorage>>()
    });
    let moved = flow::moved(&program.flow, slab_planes, &choices);
    let choices = choices.into_iter().zip(moved);
    choices.map(|(storages, moved)| candidate(program, depth, slab_planes, &pass, storages, &moved)).collect()
}

fn candidate(
    program: &RollingProgram,
    depth: usize,
    slab_planes: usize,
    pass: &PassNeeds,
    storages: Vec<PlaneStorage>,
    moved: &[usize],
) -> Candidate {
    let (starts, words) = arena::place(program, &pass.needs, &storages);
    let moved = program.buffers.iter().zip(moved).map(|(b, planes)| b.plane_bytes().saturating_mul(*planes as u64));
    let moved_bytes = moved.fold(0u64, u64::saturating_add);
    let read = program.value_views.iter().zip(&pass.planes_read);
    let read_bytes: f64 = read.map(|(view, planes)| program.view_bytes(view) as f64 * *planes as f64).sum();
    let steps = depth.div_ceil(slab_planes.max(1)) * program.nodes.len();
    let cost = program.macs as f64
        + moved_bytes as f64 * MACS_PER_BYTE
        + read_bytes * MACS_PER_READ_BYTE
        + steps as f64 * MACS_PER_STEP;
    Candidate { slab_planes, storages, starts, arena_bytes: arena_bytes(words), moved_bytes, cost }
}
