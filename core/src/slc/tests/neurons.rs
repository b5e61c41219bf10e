//! Tensors stored by row and by neuron.

use super::*;

/// A tensor of 3 dimensions where the last is over 1.
fn tensor(name: &'static str, dims: [u64; 3], ty: GgmlType) -> TensorInfo<'static> {
    let [n_cols, n_rows, n_matrices] = dims;
    TensorInfo {
        name,
        n_dims: if n_matrices > 1 { 3 } else { 2 },
        dims: [n_cols, n_rows, n_matrices, 1],
        ty,
        offset: 0,
        len_bytes: ty.row_bytes(n_cols).unwrap() * n_rows * n_matrices,
    }
}

#[test]
fn headers_by_neuron_by_hand() {
    // 352 columns: a group of 256, and one of 96. Heads of a panel have 8 or 3 scales of 2 bytes for each of 16 rows.
    let down = tensor("blk.0.ffn_down.weight", [352, 64, 1], GgmlType::Q4_0);
    let header = TensorHeader::new(&down, Layout::Neurons, 0).unwrap();
    let bytes = header.to_bytes();
    assert_eq!((bytes[1], bytes[3], bytes[49]), (2, PANEL_REVISION, 3));
    assert_eq!(header.form, Form::Neurons);
    assert_eq!(header.len_bytes, 4 * (256 + 96) + 352 * 64 / 2);
    assert_eq!(TensorHeader::from_bytes(&bytes, &down), Ok(header));
    let layout = header.matrix_layout().unwrap();
    assert_eq!((layout.form(), layout.bytes()), (Form::Neurons, 12672));
    // Rows have the size that they have in GGUF.
    let up = tensor("blk.0.ffn_up_shexp.weight", [64, 352, 1], GgmlType::Q4_0);
    let header = TensorHeader::new(&up, Layout::Neurons, 0).unwrap();
    assert_eq!((header.form, header.len_bytes), (Form::Rows, 352 * 36));
    // Records of both forms, each matrix padded to a page.
    for (name, dims, form) in [
        ("blk.1.ffn_up_exps.weight", [64, 352, 3], Form::Rows),
        ("blk.1.ffn_down_exps.weight", [352, 64, 3], Form::Neurons),
    ] {
        let experts = tensor(name, dims, GgmlType::Q4_0);
        let header = TensorHeader::new(&experts, Layout::NeuronRecords, 0).unwrap();
        assert_eq!((header.form, header.len_bytes), (form, 3 * 4 * 4096));
        assert_eq!(header.to_bytes()[1], 5);
        assert_eq!(header.n_checksums(), 3);
        let read = TensorHeader::from_bytes(&header.to_bytes(), &experts);
        assert_eq!(read, Ok(header));
    }
}

#[test]
fn layouts_by_neuron_are_for_some_names_types_and_shapes() {
    use GgmlType::{F16, IQ2_S, MXFP4, Q4_K, Q8_0};
    let cases = [
        ("blk.0.ffn_up.weight", [64, 16, 1], Q8_0, Some(2)),
        ("blk.0.ffn_up.weight", [64, 24, 1], Q8_0, None),
        ("blk.0.ffn_down.weight", [64, 32, 1], Q8_0, Some(2)),
        ("blk.0.ffn_down.weight", [64, 48, 1], Q8_0, None),
        ("blk.0.ffn_down_shexp.weight", [512, 32, 1], Q4_K, Some(2)),
        ("blk.0.ffn_down.weight", [64, 32, 1], F16, None),
        ("blk.0.ffn_down.weight", [256, 32, 1], IQ2_S, None),
        // Panels of so few columns are too large.
        ("blk.0.ffn_down.weight", [96, 32, 1], MXFP4, None),
        ("blk.0.ffn_gate.weight", [64, 32, 1], Q8_0, Some(2)),
        ("blk.0.attn_q.weight", [64, 32, 1], Q8_0, None),
        ("ffn_down.weight", [64, 32, 1], Q8_0, None),
        ("blk.0.ffn_down.bias", [64, 32, 1], Q8_0, None),
        ("blk.0.ffn_down.weight", [64, 32, 2], Q8_0, None),
        ("blk.0.ffn_down_exps.weight", [64, 32, 2], Q8_0, Some(5)),
        ("blk.0.ffn_up_exps.weight", [64, 32, 2], Q8_0, Some(5)),
        ("blk.0.ffn_gate_up_exps.weight", [64, 32, 2], Q8_0, None),
    ];
    for (name, dims, ty, id) in cases {
        let tensor = tensor(name, dims, ty);
        let possible = |layout: &Layout| TensorHeader::new(&tensor, *layout, 0).is_ok();
        let mut layouts = [Layout::Neurons, Layout::NeuronRecords].into_iter();
        let found = layouts.find(possible).map(|layout| layout as u8);
        assert_eq!(found, id, "{name} {dims:?} {ty}");
    }
}

#[test]
fn every_field_of_a_header_by_neuron_is_checked() {
    let tensors = [
        tensor("blk.0.ffn_down.weight", [352, 64, 1], GgmlType::Q4_0),
        tensor("blk.0.ffn_down_exps.weight", [352, 64, 3], GgmlType::Q4_0),
    ];
    for (tensor, layout) in tensors.iter().zip([Layout::Neurons, Layout::NeuronRecords]) {
        let header = TensorHeader::new(tensor, layout, 0).unwrap();
        let bytes = header.to_bytes();
        for (at, value, expected) in [
            (0, 2, "version 2"),
            (1, 9, "layout 9 is unknown"),
            (1, 7 - bytes[1], "cannot have this layout"),
            (2, 4, "type or shape differ"),
            (3, 1, "panels of revision 1"),
            (4, 3, "type or shape differ"),
            (8, 1, "type or shape differ"),
            (32, 1, "the payload has"),
            (44, 1, "scales"),
            (49, 0, "matrices by neuron of revision 0"),
            (49, 2, "matrices by neuron of revision 2"),
        ] {
            let mut damaged = bytes;
            damaged[at] = value;
            let error = TensorHeader::from_bytes(&damaged, tensor).unwrap_err();
            assert!(error.to_string().contains(expected), "{at}: {error}");
        }
    }
    // The same tensor in panels is not a file of the other layout.
    let panels = TensorHeader::new(&tensors[0], Layout::Panels, 0).unwrap();
    let mut bytes = panels.to_bytes();
    bytes[1] = 2;
    let error = TensorHeader::from_bytes(&bytes, &tensors[0]).unwrap_err();
    assert_eq!(error, TensorProblem::NeuronRevision(0));
}
