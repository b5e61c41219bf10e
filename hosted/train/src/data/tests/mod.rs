mod labels;
mod sets;
