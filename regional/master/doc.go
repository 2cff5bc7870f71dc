// Package master is the work of a region's master during one term of leadership.
// A Master is created when a term begins and never used again after it.
//
//	master   Master: creates the parts of a term and passes committed changes to them
//	planner  Planner: plans over the state of the log, for the sequencer
//	load     what the policies of pools weigh in the scores of nodes
//	limits   commits the limits that later masters rely on, such as the longest lease of a node
//	commits  reports when the region is unable to commit
//	exprs    evaluates expressions over nodes and caches the results
//	purge    forgets jobs that ended and nodes that have been gone for long
package master
