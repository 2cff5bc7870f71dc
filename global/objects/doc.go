// Package objects holds the stored objects of packages that serve each with a worker of its own, for
// example buses. Only the active global server has them.
//
//	table.go   Table: the stored records of one kind, in memory
//	crew.go    Crew: one worker for each object; the bounds of their reports
//	alarm.go   the text of an alarm that names objects
package objects
