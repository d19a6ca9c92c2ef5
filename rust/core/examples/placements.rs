//! Solves a placement string on two nodes, and shows the error of a wrong one:
//! `cargo run -p shoal-core --example placements -- 0-3:0-7`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;

use shoal_core::placement::{
    ACCELERATOR, NodeGroup, NodeResources, parse_placement, place_flexible,
};

fn main() {
    let text = std::env::args().nth(1);
    let text = text.as_deref().unwrap_or("0-3:0-1,4-7:2");
    let nodes = (0..2).map(|rank| NodeResources::new(rank, 4, 4, "NV_GPU"));
    let groups = [Arc::new(NodeGroup::new(
        "gpus",
        Some(ACCELERATOR),
        nodes.collect(),
    ))];
    let solved = parse_placement(text, &groups, "actor")
        .and_then(|ranks| place_flexible(&groups, &ranks, true));
    match solved {
        Err(error) => println!("{error}"),
        Ok(placements) => {
            for one in placements.iter() {
                println!(
                    "process {}: node {}, accelerators {}",
                    one.rank,
                    one.cluster_node_rank,
                    one.visible_accelerators.join(" ")
                );
            }
        }
    }
}
