package persist

// Owner marks the nodes that only the present writer holds. A writer whose state was copied
// takes a new Owner. From then on, all older nodes are frozen. Methods that write take the
// writer's Owner.
type Owner struct{ _ byte }
