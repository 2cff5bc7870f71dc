// Package rank keeps the scores of regions from plan to plan, and finds the regions with the
// greatest scores. It knows a region only by its index.
//
//	log.go     which regions changed, and since when
//	cache.go   the columns that were used last, up to a limit
//	choice.go  the order in which regions are chosen for a group
//	column.go  scores of regions, and their order: by score, then room, then index
package rank
