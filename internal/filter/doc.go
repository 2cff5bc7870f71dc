// Package filter selects the objects of lists by their states and labels. The states are words. The global tier,
// regions, agents and the CLI use the same words.
//
//	filter.go   selection by words and labels, checks of requests
//	states.go   the words for the states of each kind of object
//	first.go    the first objects of an unsorted set, for one page
package filter
