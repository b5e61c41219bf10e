//! Requests to the kernel and their results: the one report of pinning, priorities, locked
//! memory, huge pages and NUMA placement.
//!
//! A measure is requested, then read back from the kernel. It is held only if the reading confirms
//! it; otherwise the report gives what is in force instead, the reason, and the command that would
//! fix it. A refused measure degrades a run and never fails it.
#![forbid(unsafe_code)]

use core::fmt;

/// One measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMeasure {
    /// Its name in plain words: `affinity of rank 1`, `huge pages of the weights`.
    pub name: String,
    /// The request: `CPU 1`, `nice -10`.
    pub requested: String,
    /// What is in force according to the kernel: `CPU 1`, `0 of 636 MiB`.
    pub found: String,
    /// Why less is in force than requested; `None` if all of it is.
    pub why_not: Option<String>,
    /// The command that would grant it, if there is one.
    pub remedy: Option<String>,
}

impl HostMeasure {
    /// A measure that is held: read back from the kernel as `found`.
    pub fn held(
        name: impl Into<String>,
        requested: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            requested: requested.into(),
            found: found.into(),
            why_not: None,
            remedy: None,
        }
    }

    /// A measure that is not held, or only in part: `found` is in force.
    pub fn refused(
        name: impl Into<String>,
        requested: impl Into<String>,
        found: impl Into<String>,
        why_not: impl fmt::Display,
    ) -> Self {
        Self {
            why_not: Some(why_not.to_string()),
            ..Self::held(name, requested, found)
        }
    }

    /// Adds the command that would grant it.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// Whether everything requested is in force.
    pub const fn is_held(&self) -> bool {
        self.why_not.is_none()
    }
}

/// One line: `name: requested CPU 1, granted` or
/// `name: requested nice -10, got nice 0: permission denied; fix: sudo …`.
impl fmt::Display for HostMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: requested {}, ", self.name, self.requested)?;
        match &self.why_not {
            None if self.found == self.requested => f.write_str("granted")?,
            None => write!(f, "granted ({})", self.found)?,
            Some(why) => write!(f, "got {}: {why}", self.found)?,
        }
        match &self.remedy {
            Some(remedy) => write!(f, "; fix: {remedy}"),
            None => Ok(()),
        }
    }
}

/// All measures of a run, in the order in which they were requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The measures.
    pub measures: Vec<HostMeasure>,
}

impl Report {
    /// Appends a measure.
    pub fn push(&mut self, measure: HostMeasure) {
        self.measures.push(measure);
    }

    /// Measures that are not held.
    pub fn refused(&self) -> impl Iterator<Item = &HostMeasure> {
        self.measures.iter().filter(|measure| !measure.is_held())
    }

    /// Whether everything requested is in force.
    pub fn is_held(&self) -> bool {
        self.refused().next().is_none()
    }
}

/// A line for each measure.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for measure in &self.measures {
            writeln!(f, "{measure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_is_in_force() {
        let held = HostMeasure::held("affinity", "CPU 1", "CPU 1");
        assert_eq!(held.to_string(), "affinity: requested CPU 1, granted");
        let more = HostMeasure::held("huge pages", "on", "630 of 636 MiB");
        assert_eq!(
            more.to_string(),
            "huge pages: requested on, granted (630 of 636 MiB)"
        );
        let refused = HostMeasure::refused("priority", "nice -10", "nice 0", "permission denied")
            .with_remedy("sudo sluice …");
        assert_eq!(
            refused.to_string(),
            "priority: requested nice -10, got nice 0: permission denied; fix: sudo sluice …"
        );
        let mut report = Report::default();
        report.push(held);
        assert!(report.is_held());
        report.push(refused);
        assert!(!report.is_held());
        assert_eq!(report.refused().count(), 1);
        assert_eq!(report.to_string().lines().count(), 2);
    }
}
