//! Pairs for files whose neurons have another order than the model's.

use super::factors::Factors;
use super::places::Place;
use crate::neurons::{NetworkOrder, NeuronOrder};
use std::borrow::Cow;

/// A pair in the order of a file's neurons. Pairs are made for the model's own order.
pub(super) fn in_order<'f>(
    order: Option<&NeuronOrder>,
    factors: &'f Factors,
    places: &[Place],
) -> Cow<'f, Factors> {
    let mut ordered = Cow::Borrowed(factors);
    for place in places {
        if let Some(of_network) = order.and_then(|order| order.find(place.layer, place.site)) {
            turn(ordered.to_mut(), of_network, place);
        }
    }
    ordered
}

/// Brings the part of a pair that belongs to a place into the order: columns of `A` for down, rows of `B` for gate and up.
fn turn(factors: &mut Factors, network: &NetworkOrder, place: &Place) {
    let (order, rank) = (&network.order, factors.rank);
    let [_, _, down] = network.network.sites;
    if place.site == down {
        for row in factors.a.chunks_exact_mut(order.len()) {
            let old = row.to_vec();
            for (x, from) in row.iter_mut().zip(order) {
                *x = old[*from as usize];
            }
        }
    } else {
        let rows = &mut factors.b[place.first_row * rank..][..order.len() * rank];
        let old = rows.to_vec();
        for (row, from) in rows.chunks_exact_mut(rank).zip(order) {
            row.copy_from_slice(&old[*from as usize * rank..][..rank]);
        }
    }
}
