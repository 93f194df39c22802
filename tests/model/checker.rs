//! An explicit-state checker. It visits every reachable state once, breadth first, so the trace to
//! a mistake is a shortest one.
//!
//! The checker is not a library, because of the promise "never lost": from *every* state the end
//! must be reachable *without help from a fault*. The proof needs the edges of the graph and their
//! kinds, backwards. The available checkers only check paths that end, or do not tell a fault from
//! a step.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A model that can be checked.
pub trait Model {
    type State: Clone + Eq + Hash + Debug;
    type Action: Copy + Debug;

    fn initial(&self) -> Self::State;
    /// Adds all actions that are possible next.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    /// Returns the state after `action`, or `None` when it changes nothing and so is no step.
    fn step(&self, state: &Self::State, action: Self::Action) -> Option<Self::State>;
    /// Returns the kind of an action. Each kind must occur.
    fn kind(&self, action: Self::Action) -> &'static str;
    /// Returns false for faults: the end must be reachable without them.
    fn is_progress(&self, action: Self::Action) -> bool;
    /// Returns the property that a state breaks.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;
    /// Returns true when all promises have been kept.
    fn is_end(&self, state: &Self::State) -> bool;
}

/// The property that breaks when a state is found from which no end can be reached.
pub const NEVER_LOST: &str = "never lost: its end can be reached from everywhere";

/// The result of a search.
#[derive(Debug)]
pub struct Found<A> {
    pub state_count: usize,
    pub step_count: usize,
    /// The number of times that each kind of action led to a state.
    pub kinds: BTreeMap<&'static str, usize>,
    pub broken: Option<Broken<A>>,
}

/// A broken property, and the trace.
#[derive(Debug)]
pub struct Broken<A> {
    pub property: &'static str,
    pub trace: Vec<A>,
    pub state: String,
}

impl<A: Debug> Broken<A> {
    pub fn story(&self) -> String {
        let mut story = format!("{}\n", self.property);
        for action in &self.trace {
            writeln!(story, "  {action:?}").unwrap();
        }
        writeln!(story, "{}", self.state).unwrap();
        story
    }
}

/// FxHash: the states do not come from an attacker, and hashing them is most of the work.
#[derive(Default)]
pub struct Fast(u64);

impl Fast {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.add(u64::from_le_bytes(chunk.try_into().unwrap()));
        }
        for byte in chunks.remainder() {
            self.add(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(u64::from(byte));
    }

    fn write_u16(&mut self, number: u16) {
        self.add(u64::from(number));
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

/// A scope with more states than this does not fit in memory.
const STATES_MAX: usize = 4_000_000;

/// The action by which a state was first reached.
struct Way<A> {
    from: u32,
    action: Option<A>,
}

/// Visits all states, or stops at the first one that breaks a property.
pub fn search<M: Model>(model: &M) -> Found<M::Action> {
    let mut numbers: HashMap<M::State, u32, BuildHasherDefault<Fast>> = HashMap::default();
    let mut ways: Vec<Way<M::Action>> = Vec::new();
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut kinds = BTreeMap::new();
    let mut queue = VecDeque::new();
    let mut actions = Vec::new();
    let mut step_count = 0;
    let initial = model.initial();
    numbers.insert(initial.clone(), 0);
    ways.push(Way { from: 0, action: None });
    queue.push_back(initial);
    let mut number = 0_u32;
    while let Some(state) = queue.pop_front() {
        assert!(ways.len() < STATES_MAX, "more than {STATES_MAX} states: the scope is too wide");
        if let Some(property) = model.broken(&state) {
            let broken = Some(broken(&ways, number, property, &state));
            return Found { state_count: ways.len(), step_count, kinds, broken };
        }
        if model.is_end(&state) {
            ends.push(number);
        }
        actions.clear();
        model.actions(&state, &mut actions);
        for &action in &actions {
            let Some(next) = model.step(&state, action).filter(|next| *next != state) else {
                continue;
            };
            step_count += 1;
            *kinds.entry(model.kind(action)).or_insert(0) += 1;
            let fresh = u32::try_from(ways.len()).unwrap();
            let to = *numbers.entry(next).or_insert_with_key(|next| {
                queue.push_back(next.clone());
                fresh
            });
            if to == fresh {
                ways.push(Way { from: number, action: Some(action) });
            }
            if model.is_progress(action) {
                edges.push((to, number));
            }
        }
        number += 1;
    }
    let broken = cut_off(ways.len(), &mut edges, ends).map(|lost| {
        let state = numbers
            .iter()
            .find(|(_, number)| **number == lost)
            .map(|(state, _)| state.clone())
            .unwrap();
        broken(&ways, lost, NEVER_LOST, &state)
    });
    Found { state_count: ways.len(), step_count, kinds, broken }
}

/// Returns the first state from which no end can be reached. `edges` are (to, from).
fn cut_off(state_count: usize, edges: &mut [(u32, u32)], ends: Vec<u32>) -> Option<u32> {
    edges.sort_unstable();
    let mut is_safe = vec![false; state_count];
    let mut open = ends;
    open.iter().for_each(|&end| is_safe[end as usize] = true);
    while let Some(to) = open.pop() {
        let start = edges.partition_point(|edge| edge.0 < to);
        for &(_, from) in edges[start..].iter().take_while(|edge| edge.0 == to) {
            if !std::mem::replace(&mut is_safe[from as usize], true) {
                open.push(from);
            }
        }
    }
    is_safe.iter().position(|is_safe| !is_safe).map(|number| u32::try_from(number).unwrap())
}

fn broken<A: Copy, S: Debug>(
    ways: &[Way<A>],
    number: u32,
    property: &'static str,
    state: &S,
) -> Broken<A> {
    let mut trace = Vec::new();
    let mut at = number;
    while let Way { from, action: Some(action) } = &ways[at as usize] {
        trace.push(*action);
        at = *from;
    }
    trace.reverse();
    Broken { property, trace, state: format!("{state:?}") }
}
