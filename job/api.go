package job

import (
	"errors"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Format is a syntax of job files.
type Format int

const (
	YAML Format = iota
	JSON
)

var errUnwritten = errors.New("being written")

// Parse reads one job file, YAML or JSON, and checks it as Validate does.
// Defaults are not filled in. The error is of type Errors; filename is only
// for its lines.
func Parse(data []byte, filename string) (*nusav1.JobSpec, error) { return nil, errUnwritten }

// ParseRegions reads one or more region definitions, separated by "---".
func ParseRegions(data []byte, filename string) ([]*nusav1.RegionDefinition, error) {
	return nil, errUnwritten
}

// Marshal writes a spec as a job file that Parse reads back to an equal spec.
func Marshal(spec *nusav1.JobSpec, format Format) ([]byte, error) { return nil, errUnwritten }

// Validate checks every limit of a spec, defaulted or not. The error is of
// type Errors, with field paths and without lines.
func Validate(spec *nusav1.JobSpec) error { return nil }

// ValidateRegion checks a region definition. The error is of type Errors.
func ValidateRegion(def *nusav1.RegionDefinition) error { return nil }

// Unsupported names what is valid and has no engine yet: refuse a submit with
// these. Empty when all of the spec is supported.
func Unsupported(spec *nusav1.JobSpec) Errors { return nil }

// Warnings is what the author of a valid spec should know.
func Warnings(spec *nusav1.JobSpec) []string { return nil }

// Diff says what changes from old to new, by field path in the order of the
// file; nil is a job that does not exist. Default both first.
func Diff(old, new *nusav1.JobSpec) []*nusav1.DiffLine { return nil }

// UnknownRegions names every region, by field path, that the spec mentions and
// exists does not know: a typo would otherwise wait for ever.
func UnknownRegions(spec *nusav1.JobSpec, exists func(name string) bool) Errors { return nil }
