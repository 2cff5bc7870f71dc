package persist

// Owner marks the nodes that only the present writer holds. A writer whose state
// was copied takes a new Owner, which freezes all older nodes. The methods that
// write take the writer's Owner.
type Owner struct{ _ byte }
