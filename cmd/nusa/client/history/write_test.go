package history

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestTrendText(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp { return sample.Ago(-d) }
	for _, c := range []struct {
		trend *nusav1.HistoryTrend
		want  string
	}{
		{&nusav1.HistoryTrend{Field: "memory_used", Known: true, At: at(12*cli.Day + time.Hour), Earliest: at(9 * cli.Day), Latest: at(20 * cli.Day)}, "memory runs out in about 12 days (9–20)"},
		{&nusav1.HistoryTrend{Field: "disk_free", Known: true, At: at(47 * time.Hour), Earliest: at(30 * time.Hour)}, "disk runs out in about 47 hours (30 or more)"},
		{&nusav1.HistoryTrend{Field: "memory_used_bytes", Known: true, At: at(10 * time.Second)}, "memory runs out in about 1 minute"},
		{&nusav1.HistoryTrend{Field: "memory_used", Known: true, At: at(-time.Hour), Why: "it is there already"}, "memory has run out (it is there already)"},
		{&nusav1.HistoryTrend{Field: "disk_used", Why: "no trend: the values vary"}, "disk: no trend: the values vary"},
		{&nusav1.HistoryTrend{Field: "disk_used", Why: "too few values for a trend"}, "disk: too few values for a trend"},
	} {
		if got := trendText(&term.Screen{Now: sample.Noon}, c.trend); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestStatisticsIgnoreGaps: gaps do not count, and points count with their number of
// values.
func TestStatisticsIgnoreGaps(t *testing.T) {
	f := &nusav1.HistoryField{Mean: []float64{1, 0, 4}, Min: []float64{0.5, 0, 3}, Max: []float64{2, 0, 9}, Count: []int32{3, 0, 1}}
	want := statistics{min: 0.5, mean: 1.75, max: 9, latest: 4, points: 2, gaps: 1}
	if got := summarize(f); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, c := range []struct {
		points, gaps int
		want         string
	}{{3, 0, ""}, {0, 3, "100%"}, {1, 999, ">99%"}, {999, 1, "<1%"}, {1, 1, "50%"}, {0, 0, ""}} {
		if got := (statistics{points: c.points, gaps: c.gaps}).gapText(); got != c.want {
			t.Errorf("%d points, %d gaps: %q, want %q", c.points, c.gaps, got, c.want)
		}
	}
	if got := spark(f, 10); got != "▁ █" {
		t.Errorf("drawn as %q", got)
	}
	// A server may send fewer values than it announces.
	short := &nusav1.HistoryField{Mean: []float64{1}, Count: []int32{1, 1}}
	if got := summarize(short); got.points != 0 {
		t.Errorf("points without their least value: %+v", got)
	}
	if got := spark(&nusav1.HistoryField{Mean: []float64{1, 2}, Count: []int32{1}}, 10); got != "▄ " && got != "▅ " {
		t.Errorf("drawn as %q", got)
	}
}
