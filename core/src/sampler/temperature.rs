//! Temperature: how much likelier the likely tokens are than the others.

use super::{Candidates, LogitsProcessor, SampleContext, math};

/// Divides the logits by the temperature; 0 or less keeps only the best token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// 1 changes nothing; less sharpens, more flattens.
    pub temperature: f32,
}

impl LogitsProcessor for Temperature {
    #[expect(clippy::float_cmp, reason = "only exactly 1 changes nothing")]
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.temperature <= 0.0 {
            candidates.keep_top(1);
        } else if self.temperature != 1.0 {
            let temperature = self.temperature;
            // A dynamic temperature may be infinite: masked and forced logits stay so.
            candidates.map_logits(|candidate| match candidate.logit {
                logit if logit.is_infinite() => logit,
                logit => logit / temperature,
            });
        }
    }
}

/// A temperature between `temperature - range` and `temperature + range`, by the entropy.
///
/// llama.cpp's extended temperature: the lower end where one token is certain, the upper where
/// all are equally likely, and in between by (entropy / largest possible entropy) to the power
/// of `exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    /// The middle; below `range` the lower end is 0.
    pub temperature: f32,
    /// Half the width; 0 or less is the plain [`Temperature`].
    pub range: f32,
    /// 1 is linear.
    pub exponent: f32,
}

impl LogitsProcessor for DynamicTemperature {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        let mut temperature = self.temperature;
        if self.range > 0.0 {
            if candidates.len() < 2 {
                return;
            }
            let Some(spread) = candidates.spread() else {
                return;
            };
            let lowest = f64::from((temperature - self.range).max(0.0));
            let highest = f64::from(temperature + self.range);
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
            let most = math::ln(candidates.len() as f64);
            let share = math::pow(spread.entropy / most, f64::from(self.exponent));
            temperature = math::round_to_f32(lowest + (highest - lowest) * share);
        }
        Temperature { temperature }.apply(candidates, context);
    }
}
