package main

import (
	"testing"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// TestBugThatWouldNotBePlantedIsRefused: worlds without the bug that was asked for would
// look like worlds that survive the bug.
func TestBugThatWouldNotBePlantedIsRefused(t *testing.T) {
	for _, c := range []struct {
		bug            string
		planted, trace bool
		refused        bool
	}{
		{"", false, false, false},
		{string(plant.NoDrift), false, false, true},
		{string(plant.NoDrift), true, false, false},
		{string(plant.NoDrift), false, true, false},
		{"no such bug", true, false, true},
	} {
		if err := checkBug(c.bug, c.planted, c.trace); (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
