//! Runs the conformance suite, which every implementation of [`Memory`] must pass, on the simulator.

use nearfar_kernel::tiering::testing::conformance::{Subject, suite};

use super::*;

struct Simulated(Engine);

impl Subject for Simulated {
    fn memory(&self) -> &dyn Memory {
        &self.0.world
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Sleep => self.0.sleep(SLEEP_TIME),
            Step::Release(page) => self.0.release(Page::new(page % PAGES)),
            step => self.0.run(&[access(step, PAGES).unwrap()]).unwrap(),
        }
        self.0.world.check().unwrap();
    }
}

#[test]
fn the_simulator_keeps_to_the_contract() {
    suite(400, |make, seed| {
        let nodes: &[u64] = if seed.is_multiple_of(2) { &[8, 12, 24] } else { &[10, 26] };
        let world = World::new(plain_hardware(nodes.len()), nodes, PAGES);
        Simulated(Engine::new(world, make, false).unwrap())
    });
}
