//! Combining several adapters into one.
//!
//! [`stack`] is exact: the product of stacked matrices is the sum of the products. [`interpolate`] sums the weighted
//! matrices themselves, as this program's predecessor did; that differs from the sum of the products.

use sluice::adapter::{AdapterFile, AdapterLoadError, Factors};
use std::collections::HashMap;

/// Stacks the ranks of weighted adapters: each pair's product is the weighted sum of the products.
///
/// # Errors
/// [`AdapterLoadError`]: the adapters are for different models, or there are no adapters.
pub fn stack(files: &[(AdapterFile, f32)]) -> Result<AdapterFile, AdapterLoadError> {
    let mut all = begin(files)?;
    let mut places = HashMap::new();
    for (file, weight) in files {
        for own in &file.factors {
            let scale = own.scale * weight;
            match places.get(&own.key()) {
                Some(&place) => append(&mut all.factors[place], own, scale, &file.path)?,
                None => {
                    places.insert(own.key(), all.factors.len());
                    all.factors.push(Factors {
                        scale,
                        ..own.clone()
                    });
                }
            }
        }
    }
    Ok(all)
}

/// A = Σ wᵢ · Aᵢ and B = Σ wᵢ · Bᵢ. All adapters must have the same pairs, with equal ranks and scales.
///
/// # Errors
/// [`AdapterLoadError`], naming the tensor that differs.
pub fn interpolate(files: &[(AdapterFile, f32)]) -> Result<AdapterFile, AdapterLoadError> {
    let mut all = begin(files)?;
    let Some(((first, weight), rest)) = files.split_first() else {
        return Ok(all);
    };
    let known: Vec<HashMap<_, _>> = rest.iter().map(|(file, _)| by_key(file)).collect();
    for own in &first.factors {
        let mut sum = Factors {
            a: own.a.iter().map(|x| weight * x).collect(),
            b: own.b.iter().map(|x| weight * x).collect(),
            ..own.clone()
        };
        for ((file, weight), known) in rest.iter().zip(&known) {
            let error = |what: String| Err(AdapterLoadError::tensor(&file.path, told(own), what));
            let Some(&other) = known.get(&own.key()) else {
                return error(format!("is not adapted here, but in {}", first.path));
            };
            check_shape(own, other, &file.path)?;
            if own.rank != other.rank {
                let (rank, other) = (own.rank, other.rank);
                return error(format!(
                    "has rank {other}, but in {} {rank}: ranks must be equal",
                    first.path
                ));
            }
            if own.scale.to_bits() != other.scale.to_bits() {
                let (scale, other) = (own.scale, other.scale);
                return error(format!(
                    "is scaled by {other}, but in {} by {scale}",
                    first.path
                ));
            }
            add(&mut sum.a, &other.a, *weight);
            add(&mut sum.b, &other.b, *weight);
        }
        all.factors.push(sum);
    }
    let known = by_key(first);
    for (file, _) in rest {
        let mut factors = file.factors.iter();
        let is_new = |own: &&Factors| !known.contains_key(&own.key());
        if let Some(own) = factors.find(is_new) {
            let what = format!("is adapted here, but not in {}", first.path);
            return Err(AdapterLoadError::tensor(&file.path, told(own), what));
        }
    }
    Ok(all)
}

/// An adapter without pairs, for the model that all adapters have in common.
fn begin(files: &[(AdapterFile, f32)]) -> Result<AdapterFile, AdapterLoadError> {
    let mut all = AdapterFile::default();
    for (file, weight) in files {
        if !weight.is_finite() {
            let what = format!("has a weight of {weight}, which is not finite");
            return Err(AdapterLoadError::key(&file.path, "the adapter", what));
        }
        let has_other = !file.architecture.is_empty() && all.architecture != file.architecture;
        if has_other && !all.architecture.is_empty() {
            return Err(AdapterLoadError::Family {
                path: file.path.clone(),
                found: file.architecture.clone(),
                expected: all.architecture,
            });
        }
        if has_other {
            all.architecture.clone_from(&file.architecture);
        }
        all.base_model = all.base_model.or_else(|| file.base_model.clone());
        all.warnings.extend(file.warnings.iter().cloned());
    }
    let paths: Vec<_> = files.iter().map(|(file, _)| file.path.as_str()).collect();
    all.path = paths.join(" + ");
    Ok(all)
}

/// Appends a pair's ranks to `all`.
fn append(
    all: &mut Factors,
    own: &Factors,
    scale: f32,
    path: &str,
) -> Result<(), AdapterLoadError> {
    check_shape(all, own, path)?;
    // Equal scales are kept; otherwise they are multiplied into the numbers.
    let by = match all.scale.to_bits() == scale.to_bits() {
        true => 1.0,
        false => {
            let own = all.scale;
            all.b.iter_mut().for_each(|x| *x *= own);
            all.scale = 1.0;
            scale
        }
    };
    all.a.extend(&own.a);
    let rows = all
        .b
        .chunks_exact(all.rank)
        .zip(own.b.chunks_exact(own.rank));
    let rows = rows.flat_map(|(all, own)| all.iter().copied().chain(own.iter().map(|x| x * by)));
    all.b = rows.collect();
    all.rank += own.rank;
    Ok(())
}

fn by_key(file: &AdapterFile) -> HashMap<(&str, Option<u32>), &Factors> {
    let factors = file.factors.iter();
    factors.map(|own| (own.key(), own)).collect()
}

fn check_shape(all: &Factors, own: &Factors, path: &str) -> Result<(), AdapterLoadError> {
    let shape = |factors: &Factors| [factors.n_rows() as u64, factors.n_cols() as u64];
    match shape(all) == shape(own) {
        true => Ok(()),
        false => Err(AdapterLoadError::Shape {
            path: path.into(),
            tensor: told(own),
            found: shape(own),
            expected: shape(all),
        }),
    }
}

fn add(sum: &mut [f32], x: &[f32], weight: f32) {
    sum.iter_mut()
        .zip(x)
        .for_each(|(sum, x)| *sum += weight * x);
}

fn told(factors: &Factors) -> String {
    match factors.part {
        Some(part) => format!("{}[{part}]", factors.tensor),
        None => factors.tensor.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, factors: &[(&str, usize, f32)]) -> AdapterFile {
        let pair = |&(tensor, rank, scale): &(&str, usize, f32)| {
            let numbers =
                |n: usize, start: u8| (0u8..).take(n).map(|i| f32::from(i + start)).collect();
            Factors {
                tensor: tensor.into(),
                part: None,
                rank,
                a: numbers(rank * 3, 1),
                b: numbers(2 * rank, 7),
                scale,
            }
        };
        AdapterFile {
            path: path.into(),
            architecture: "llama".into(),
            factors: factors.iter().map(pair).collect(),
            ..AdapterFile::default()
        }
    }

    fn product(factors: &Factors) -> Vec<f32> {
        let rows = factors.b.chunks_exact(factors.rank);
        let entry = |row: &[f32], c: usize| {
            let terms = (0..factors.rank).map(|k| row[k] * factors.a[k * 3 + c]);
            factors.scale * terms.sum::<f32>()
        };
        rows.flat_map(|row| (0..3).map(move |c| entry(row, c)))
            .collect()
    }

    #[test]
    fn stacked_products_are_summed() {
        let files = [
            (file("x", &[("q", 2, 0.5), ("k", 1, 1.0)]), 2.0),
            (file("y", &[("q", 1, 4.0), ("v", 1, 1.0)]), -1.0),
        ];
        let all = stack(&files).expect("they go together");
        assert_eq!((all.path.as_str(), all.factors.len()), ("x + y", 3));
        let q = &all.factors[0];
        let [x, y] = [&files[0].0.factors[0], &files[1].0.factors[0]].map(product);
        let expected: Vec<_> = x.iter().zip(&y).map(|(x, y)| 2.0 * x - y).collect();
        assert_eq!((q.rank, product(q)), (3, expected));
        let scales: Vec<_> = all.factors[1..]
            .iter()
            .map(|own| own.scale.to_bits())
            .collect();
        assert_eq!(scales, [2f32.to_bits(), (-1f32).to_bits()]);
    }

    #[test]
    fn interpolated_matrices_are_summed() {
        let files = [
            (file("x", &[("q", 2, 0.5)]), 0.25),
            (file("y", &[("q", 2, 0.5)]), 0.75),
        ];
        let all = interpolate(&files).expect("they go together");
        assert_eq!(all.factors, files[0].0.factors);
        for (other, expected) in [
            (&[("q", 1, 0.5)][..], "q has rank 1, but in x 2"),
            (&[("q", 2, 1.0)], "q is scaled by 1, but in x by 0.5"),
            (&[("k", 2, 0.5)], "q is not adapted here, but in x"),
            (
                &[("q", 2, 0.5), ("k", 1, 1.0)],
                "k is adapted here, but not in x",
            ),
        ] {
            let files = [files[0].clone(), (file("y", other), 1.0)];
            let error = interpolate(&files).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn adapters_of_two_families_do_not_go_together() {
        let mut other = file("y", &[("q", 2, 0.5)]);
        other.architecture = "qwen2".into();
        let files = [(file("x", &[("q", 2, 0.5)]), 1.0), (other, 1.0)];
        let error = stack(&files).expect_err("two families").to_string();
        assert!(
            error.contains("\"qwen2\", but the model's is \"llama\""),
            "{error}"
        );
    }
}
