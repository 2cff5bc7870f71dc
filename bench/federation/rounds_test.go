package federation

import (
	"reflect"
	"testing"
)

// TestMiddle: figures are the medians of the rounds, counts the greatest, and ratios the medians of the rounds' ratios.
func TestMiddle(t *testing.T) {
	v := func(f float64) *float64 { return &f }
	round := func(decided, parts, cores float64, ended int) *Result {
		r := &Result{
			Regions: 5, Jobs: 10, Slots: 13, DecidedPerS: decided, SubmitToOfferedMS: Pair{P50: decided / 100, P99: 7}, Filesystem: "ext4",
			Idle: &Idle{Cores: v(cores), Memory: &Memory{RSSMB: 150, OwnMB: 100}}, Ended: ended, Parts: &Result{DecidedPerS: parts},
		}
		r.Ratios = ratiosOf(r, r.Parts)
		return r
	}
	rounds := []*Result{round(100, 400, 0.3, 0), round(300, 500, 0.1, 2), round(200, 250, 0.2, 0)}
	rounds[1].RestartS = v(2) // the other rounds lack this figure
	want := &Result{
		Regions: 5, Jobs: 10, Slots: 13, DecidedPerS: 200, SubmitToOfferedMS: Pair{P50: 2, P99: 7}, Filesystem: "ext4",
		Idle: &Idle{Cores: v(0.2), Memory: &Memory{RSSMB: 150, OwnMB: 100}}, Ended: 2, Parts: &Result{DecidedPerS: 400}, RestartS: v(2),
		Ratios: map[string]float64{"decided_per_s": 0.6}, Rounds: 3, RatiosOfRounds: map[string][]float64{"decided_per_s": {0.25, 0.6, 0.8}},
	}
	if got := middle(rounds); !reflect.DeepEqual(got, want) {
		t.Errorf("the middle of three rounds is\n%+v, want\n%+v", got, want)
	}
	if got := middle(rounds[:1]); !reflect.DeepEqual(got, rounds[0]) {
		t.Errorf("the middle of one round is\n%+v, want the round\n%+v", got, rounds[0])
	}
	if got := middle(rounds[:2]).DecidedPerS; got != 200 {
		t.Errorf("the middle of 100 and 300 is %v", got)
	}
	if got := middle([]*Result{rounds[0], rounds[1], {Regions: 5, Incomplete: true}}); got.DecidedPerS != 200 || got.Rounds != 2 || !got.Incomplete {
		t.Errorf("with an incomplete round: %+v, want the middle of the others, marked incomplete", got)
	}
	lacks := round(300, 500, 0.1, 0)
	lacks.Ratios = nil
	if got := middle([]*Result{rounds[0], lacks, rounds[2]}); got.RangeText("decided_per_s") != " (0.25 to 0.80)" {
		t.Errorf("the ratios of the rounds are %v, although one round has none", got.RatiosOfRounds)
	}
	if got := middle([]*Result{{Regions: 5, DecidedPerS: 100, Incomplete: true}}); got.DecidedPerS != 100 || !got.Incomplete {
		t.Errorf("an incomplete round alone: %+v", got)
	}
}

// TestRounds measures twice, with new processes each time.
func TestRounds(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Jobs, o.Rounds, o.Etcd, o.Idle = 12, 2, 0, 0
	r, err := Measure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Decided != 16 || r.Rounds != 2 || r.DecidedPerS <= 0 || *r.RestartS <= 0 {
		t.Errorf("%+v", r)
	}
}
