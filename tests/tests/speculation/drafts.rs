//! A draft that knows the texts.

use core::error::Error;
use sluice::speculate::{Ask, Drafter};
use sluice_core::speculate::{Class, DraftToken};
use sluice_tests::build::Random;

/// Drafts the tokens of known texts, `right` out of ten correctly.
#[derive(Debug)]
pub(super) struct Fixed {
    texts: Vec<Vec<u32>>,
    right: u32,
    random: Random,
}

impl Fixed {
    pub(super) const fn new(texts: Vec<Vec<u32>>, right: u32) -> Self {
        Self {
            texts,
            right,
            random: Random(7),
        }
    }
}

impl Drafter for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn can_draft(&self, _: u32, _: &[u32]) -> bool {
        true
    }

    fn expect(&self, _: &[u32]) -> f64 {
        1.0
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn Error>> {
        for ask in asks {
            let known = self.texts.iter().find(|text| text.starts_with(ask.text));
            let rest = known.map_or(&[][..], |text| &text[ask.text.len()..]);
            // Tokens after the end are drafted, too.
            let rest = rest.iter().copied().chain(core::iter::repeat(3));
            for token in rest.take(ask.n_max) {
                let is_right = self.random.below(10) < self.right;
                ask.drafts.push(DraftToken {
                    token: if is_right { token } else { 5 },
                    class: Class::model(0.5),
                });
            }
        }
        Ok(())
    }
}
