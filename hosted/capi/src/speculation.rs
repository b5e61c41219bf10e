//! Speculation in a context.

use crate::model::{load_failure, session_failure};
use crate::status::{Failure, Status};
use sluice::draft::{DraftError, DraftModel, SpeculationSetup};
use sluice::model::LoadOptions;
use sluice::speculate::{Drafter, POSITIONS_MAX, SpeculationOptions};
use sluice::{Limits, Model, Session};

/// The speculation settings of a context.
pub(crate) struct Asked<'p> {
    /// `auto` (also if not set) or `none`.
    pub(crate) kind: Option<&'p str>,
    pub(crate) draft: Option<&'p Model>,
    /// 0 is the model's default.
    pub(crate) n_max: u32,
    pub(crate) n_min: u32,
    pub(crate) p_min: f32,
}

/// What drafts, and how far.
pub(crate) struct Speculation {
    /// `None` drafts nothing.
    setup: Option<SpeculationSetup>,
    draft: Option<Model>,
}

impl Speculation {
    pub(crate) fn new(asked: &Asked<'_>) -> Result<Self, Failure> {
        let n_max = at_most("n_draft", asked.n_max)?;
        let n_min = at_most("n_draft_min", asked.n_min)?;
        let (p_min, has_draft) = (asked.p_min, asked.draft.is_some());
        if !(0.0..=1.0).contains(&p_min) {
            let message = format_args!("draft_p_min is {p_min}, expected a number from 0 to 1");
            return Err(invalid(message));
        }
        let setup = SpeculationSetup {
            options: SpeculationOptions {
                n_min: n_min.max(1),
                p_min,
                ..SpeculationOptions::default()
            },
            n_max: Some(n_max).filter(|n| *n > 0),
            draft: None,
            head: !has_draft,
        };
        let setup = match asked.kind {
            None | Some("auto") => Some(setup),
            Some("none") if has_draft => {
                return Err(invalid("draft_model is given, but speculation is 'none'"));
            }
            Some("none") => None,
            Some(name) => {
                return Err(invalid(format_args!(
                    "unknown speculation '{name}': expected auto or none"
                )));
            }
        };
        Ok(Self {
            setup,
            draft: asked.draft.cloned(),
        })
    }

    /// `limits` with the room that drafts take in a context of `model`.
    pub(crate) fn limits(&self, model: &Model, limits: Limits) -> Limits {
        let setup = self.setup.as_ref();
        setup.map_or(limits, |setup| setup.limits(model, limits))
    }

    /// Enables speculation in `session`, which was created with `limits`.
    pub(crate) fn begin(&self, session: &mut Session, limits: &Limits) -> Result<(), Failure> {
        let Some(setup) = &self.setup else {
            return Ok(());
        };
        session.set_speculation(Some(setup.options(limits)));
        let (model, team) = (session.model().clone(), session.team().clone());
        let draft: Option<Box<dyn Drafter>> = match &self.draft {
            Some(draft) => {
                let draft = DraftModel::new(draft, &model, &team, limits, "draft-simple");
                Some(Box::new(draft.map_err(draft_failure)?))
            }
            None => {
                let loaded = setup.load(&model, &team, limits, LoadOptions::default());
                loaded.map_err(draft_failure)?.flatten()
            }
        };
        session.set_drafter(draft);
        Ok(())
    }
}

fn at_most(name: &str, n: u32) -> Result<usize, Failure> {
    let n = n as usize;
    if n <= POSITIONS_MAX {
        return Ok(n);
    }
    let message = format_args!("{name} is {n}, more than the maximum of {POSITIONS_MAX}");
    Err(invalid(message))
}

fn invalid(message: impl ToString) -> Failure {
    Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
}

/// The draft model or head cannot be used.
fn draft_failure(error: DraftError) -> Failure {
    match error {
        DraftError::Load(error) => load_failure(error),
        DraftError::Session(error) => session_failure(error),
        error => invalid(format_args!("draft_model: {error}")),
    }
}
