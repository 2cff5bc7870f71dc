package prediction

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/predict"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

const (
	// firstShare is the share of a region's probes that measure random other regions.
	firstShare = 0.7
	// adaptiveRounds is the number of later rounds. In these the model chooses which
	// regions are probed.
	adaptiveRounds = 3
)

// Options of a measurement.
type Options struct {
	// Matrix is the path of a file with round trips. Format is its format: matrix, edges
	// or plain.
	Matrix, Format string
	// Neighbours is the number of other regions that each region may probe.
	Neighbours int
	Seed       uint64
}

// Result says how well unmeasured round trips were predicted.
type Result struct {
	Regions int `json:"regions"`
	// MeasuredPairs counts unordered pairs of regions that were measured. UnmeasuredPairs
	// counts the other pairs that have a believable round trip in the file.
	MeasuredPairs   int `json:"measured_pairs"`
	UnmeasuredPairs int `json:"unmeasured_pairs"`
	// MedianRelativeError and P90RelativeError are quantiles of |predicted − true| / true over
	// the unmeasured pairs; 0 without such pairs.
	MedianRelativeError float64 `json:"median_relative_error"`
	P90RelativeError    float64 `json:"p90_relative_error"`
	// NearestStretch is the mean over all regions of a ratio: the true round trip to the
	// region that is predicted as nearest, divided by the true round trip to the nearest
	// region.
	NearestStretch float64 `json:"nearest_stretch"`
	// RejectedSamples counts samples of the file that were rejected because they are
	// impossible or contradict other samples.
	RejectedSamples int `json:"rejected_samples"`

	Neighbours int    `json:"neighbours"`
	Seed       uint64 `json:"seed"`
	// AdaptivePairs counts the probed pairs that the model chose from earlier results.
	AdaptivePairs int `json:"adaptive_pairs"`
	// UnusablePairs counts the probed pairs that have no believable sample.
	UnusablePairs int `json:"unusable_pairs"`
	// WithinStatedError is the share of unmeasured pairs whose error was below the error that
	// was stated with the prediction. The target is 0.8.
	WithinStatedError float64 `json:"within_stated_error"`
	// FitSeconds is how long the last fit of the model took.
	FitSeconds float64    `json:"fit_seconds"`
	Rejected   []Rejected `json:"rejected,omitempty"`
}

// Rejected counts the samples that were rejected for one reason.
type Rejected struct {
	Why   string `json:"why"`
	Count int    `json:"count"`
	// FirstLine is the first line of the file with such a sample.
	FirstLine int `json:"first_line"`
}

// Measure runs a measurement. An error names the wrong flag, and the line at which a file
// is unreadable.
func Measure(o Options) (*Result, error) {
	parse, known := map[string]func(io.Reader) (*topology.Cells, error){
		"matrix": topology.ParseMatrix, "edges": topology.ParseEdges, "plain": topology.ParsePlain,
	}[o.Format]
	switch {
	case o.Matrix == "":
		return nil, fmt.Errorf("--matrix: no file given")
	case !known:
		return nil, fmt.Errorf("--format: %q is not one of matrix, edges, plain", o.Format)
	case o.Neighbours < 1:
		return nil, fmt.Errorf("--neighbours: %d is not 1 or more", o.Neighbours)
	}
	file, err := os.Open(o.Matrix)
	if err != nil {
		return nil, fmt.Errorf("--matrix: %w", err)
	}
	defer file.Close()
	cells, err := parse(file)
	if err != nil {
		return nil, fmt.Errorf("--matrix: %s: %w", o.Matrix, err)
	}
	return newProber(cells, o).run(), nil
}

// simulation measures a pair of regions by taking the pair's samples from the file.
type simulation struct {
	o         Options
	n         int
	locations []*topology.Location
	samples   []predict.Sample // all samples of the file
	lines     []int            // the line of each sample
	byPair    map[[2]int][]int // the indexes of a pair's samples; a pair has the lower region first
	known     []int            // the indexes of the measured samples
	tried     map[[2]int]bool
	truth     []float64 // the round trip of pair i*n + j in ms; NaN = none
	flaws     map[int]predict.Flaw
	r         *Result
}

func newProber(cells *topology.Cells, o Options) *simulation {
	n := len(cells.Regions)
	p := &simulation{
		o: o, n: n, locations: make([]*topology.Location, n), byPair: map[[2]int][]int{}, tried: map[[2]int]bool{},
		truth: make([]float64, n*n), flaws: map[int]predict.Flaw{},
		r: &Result{Regions: n, Neighbours: o.Neighbours, Seed: o.Seed, NearestStretch: 1},
	}
	for i, name := range cells.Regions {
		// Azure's short names are its display names without spaces.
		if region, ok := wan.AzureRegion(strings.ToLower(strings.ReplaceAll(name, " ", ""))); ok {
			p.locations[i] = region.Location
		}
	}
	for _, c := range cells.Cells {
		if c.From == c.To {
			continue // the diagonal of a matrix
		}
		pair := [2]int{min(c.From, c.To), max(c.From, c.To)}
		p.byPair[pair] = append(p.byPair[pair], len(p.samples))
		p.samples = append(p.samples, predict.Sample{From: c.From, To: c.To, RTT: c.RTT, Min: c.Min})
		p.lines = append(p.lines, c.Line)
	}
	for i := range p.truth {
		p.truth[i] = math.NaN()
	}
	pairs, rejected := predict.Clean(n, p.samples, p.locations)
	for _, pair := range pairs {
		p.truth[pair.A*n+pair.B], p.truth[pair.B*n+pair.A] = pair.RTT, pair.RTT
	}
	for _, r := range rejected {
		p.flaws[r.Sample] = r.Flaw
	}
	return p
}

// run measures random pairs first, then the pairs that the model asks for. At the end it
// compares the predictions with the file.
func (p *simulation) run() *Result {
	can := func(a, b int) bool { return len(p.byPair[[2]int{a, b}]) > 0 && !p.tried[[2]int{a, b}] }
	neighbours := min(p.o.Neighbours, p.n)
	left := make([]int, p.n)
	for i := range left {
		left[i] = neighbours
	}
	model := p.fit()
	for round := range 1 + adaptiveRounds {
		quota := make([]int, p.n)
		for i := range quota {
			quota[i] = int(math.Ceil(firstShare * float64(neighbours)))
			if round > 0 {
				rounds := adaptiveRounds + 1 - round // including this round
				quota[i] = (left[i] + rounds - 1) / rounds
			}
		}
		probes := model.Next(quota, can)
		for _, probe := range probes {
			left[probe.From]--
			pair := [2]int{min(probe.From, probe.To), max(probe.From, probe.To)}
			p.tried[pair] = true
			p.known = append(p.known, p.byPair[pair]...)
		}
		if round > 0 {
			p.r.AdaptivePairs += len(probes)
		}
		if len(probes) > 0 {
			model = p.fit()
		}
	}
	p.score(model)
	return p.r
}

// fit fits a model to the measured samples.
func (p *simulation) fit() *predict.Model {
	samples := make([]predict.Sample, len(p.known))
	for k, i := range p.known {
		samples[k] = p.samples[i]
	}
	began := time.Now()
	model := predict.Fit(p.n, samples, predict.Options{Seed: p.o.Seed, Locations: p.locations})
	p.r.FitSeconds = report.Seconds(time.Since(began))
	return model
}

// score compares the model with the file's values of the unmeasured pairs.
func (p *simulation) score(model *predict.Model) {
	for _, r := range model.Rejected() {
		if i := p.known[r.Sample]; p.flaws[i] == "" {
			p.flaws[i] = r.Flaw
		}
	}
	p.countFlaws()
	var errs []float64
	within := 0
	for i := range p.n {
		for j := i + 1; j < p.n; j++ {
			truth := p.truth[i*p.n+j]
			if _, measured := model.Measured(i, j); measured {
				p.r.MeasuredPairs++
			} else if p.tried[[2]int{i, j}] {
				p.r.UnusablePairs++
				p.truth[i*p.n+j], p.truth[j*p.n+i] = math.NaN(), math.NaN()
			} else if !math.IsNaN(truth) {
				rtt, stated := model.RTT(i, j)
				err := math.Abs(rtt.Seconds()*1000-truth) / truth
				errs = append(errs, err)
				if err <= stated {
					within++
				}
			}
		}
	}
	p.r.UnmeasuredPairs = len(errs)
	if len(errs) > 0 {
		slices.Sort(errs)
		p.r.MedianRelativeError = report.Round(nearestRank(errs, 0.5), 5)
		p.r.P90RelativeError = report.Round(nearestRank(errs, 0.9), 5)
		p.r.WithinStatedError = report.Round(float64(within)/float64(len(errs)), 4)
	}
	p.stretch(model)
}

// stretch compares each region's predicted nearest region with the true one.
func (p *simulation) stretch(model *predict.Model) {
	var sum float64
	asked := 0
	for i := range p.n {
		chosen, nearest := -1, math.Inf(1)
		least := time.Duration(math.MaxInt64)
		for j := range p.n {
			truth := p.truth[i*p.n+j]
			if i == j || math.IsNaN(truth) {
				continue
			}
			nearest = min(nearest, truth)
			if rtt, _ := model.RTT(i, j); rtt < least {
				least, chosen = rtt, j
			}
		}
		if chosen >= 0 {
			sum += p.truth[i*p.n+chosen] / nearest
			asked++
		}
	}
	if asked > 0 {
		p.r.NearestStretch = report.Round(sum/float64(asked), 4)
	}
}

func (p *simulation) countFlaws() {
	p.r.RejectedSamples = len(p.flaws)
	by := map[predict.Flaw]*Rejected{}
	for i, f := range p.flaws {
		if by[f] == nil {
			by[f] = &Rejected{Why: string(f), FirstLine: p.lines[i]}
		}
		by[f].Count++
		by[f].FirstLine = min(by[f].FirstLine, p.lines[i])
	}
	for _, r := range by {
		p.r.Rejected = append(p.r.Rejected, *r)
	}
	slices.SortFunc(p.r.Rejected, func(x, y Rejected) int { return cmp.Compare(x.Why, y.Why) })
}

// nearestRank returns a quantile of sorted values.
func nearestRank(sorted []float64, p float64) float64 {
	return sorted[max(int(math.Ceil(p*float64(len(sorted)))), 1)-1]
}

// Table writes the figures as a table.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("regions", "%d, each measures up to %d others, seed %d", r.Regions, r.Neighbours, r.Seed)
	row("measured", "%d pairs, %d of them chosen by earlier results; %d more without a believable sample", r.MeasuredPairs, r.AdaptivePairs, r.UnusablePairs)
	row("predicted", "%d pairs; one fit took %.2f s", r.UnmeasuredPairs, r.FitSeconds)
	if r.UnmeasuredPairs == 0 {
		row("relative error", "nothing was left to predict: a smaller --neighbours leaves some pairs")
	} else {
		row("relative error", "median %.3f, p90 %.3f; %.0f%% within the stated error", r.MedianRelativeError, r.P90RelativeError, 100*r.WithinStatedError)
	}
	row("nearest stretch", "%.3f", r.NearestStretch)
	row("rejected samples", "%d", r.RejectedSamples)
	for _, f := range r.Rejected {
		row("  "+f.Why, "%d, the first in line %d", f.Count, f.FirstLine)
	}
	return t.Flush()
}
