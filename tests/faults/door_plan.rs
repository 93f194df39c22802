//! The faults of the doors beside REST, and those of consumers without Kafka. Both have lanes of
//! their own: they use none of the resources of the other operations.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::plan::{Kind, Operation, Plan, ROOMY_FROM_SECONDS};

/// Keep the numbers that are drawn apart from those of the other lanes.
const SALT_OF_DOORS: u64 = 0x00d0_0255;
const SALT_OF_CONSUMERS: u64 = 0x00c0_2525;
const FROM_MS: u64 = 2000;

impl Plan {
    /// Returns true when something is done to the doors.
    pub fn has_doors(&self) -> bool {
        self.operations.iter().any(|operation| operation.kind.is_of_doors())
    }

    /// Adds faults of the doors.
    pub fn break_doors(&mut self) {
        self.add_lane(Kind::of_doors, SALT_OF_DOORS);
    }

    /// Adds faults of the service that is called back, and of callers of `pop`.
    pub fn break_consumers(&mut self) {
        self.add_lane(Kind::of_consumers, SALT_OF_CONSUMERS);
    }

    /// Adds each kind once in random order, and again while there is time.
    fn add_lane<Kinds: Iterator<Item = Kind>>(&mut self, kinds: fn() -> Kinds, salt: u64) {
        let mut chance = StdRng::seed_from_u64(self.seed ^ salt);
        let end = self.seconds.saturating_mul(1000).saturating_sub(5000);
        let is_roomy = self.seconds >= ROOMY_FROM_SECONDS;
        let (mut at, mut lap) = (FROM_MS, 0);
        while at < end || lap == 0 {
            let mut deck: Vec<Kind> = kinds().collect();
            deck.shuffle(&mut chance);
            for kind in deck {
                if at >= end && lap > 0 {
                    break;
                }
                let operation = Operation::random(kind, at, is_roomy, &mut chance);
                at = operation.over_at()
                    + chance.random_range(if is_roomy { 500..4000 } else { 50..400 });
                self.operations.push(operation);
            }
            lap += 1;
        }
        self.operations.sort_by_key(|operation| operation.at);
    }
}
