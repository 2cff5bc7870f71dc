// Package rank keeps numbers of regions from plan to plan, and finds the regions with the
// greatest ones. It knows regions by their index only.
//
//	log.go     which regions changed, and since when
//	cache.go   a bounded set of columns: those used last
//	choice.go  the order in which regions are chosen for a group
//	column.go  scores of regions, and their order: by score, then room, then index
package rank
