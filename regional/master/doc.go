// Package master is the work of a region's master during one term of leadership.
// A Master is created when a term begins and never used again after it.
//
//	master   Master: creates the parts of a term and passes committed changes to them
//	planner  Planner: plans over the state of the log, for the sequencer
//	limits   what later masters rely on, such as the greatest length of a node's lease
//	commits  says when the region is unable to commit
//	exprs    results of expressions over nodes, cached
//	purge    forgets jobs that ended and nodes that have been gone for long
//	events   events about instances
package master
