package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// CheckPercentile refuses percentiles that are not measured.
func CheckPercentile(p int) error {
	if !slices.Contains([]int{50, 90, 99}, p) {
		return fmt.Errorf("--percentile: %d is not one of 50, 90, 99", p)
	}
	return nil
}

// The kinds of series.
const (
	KindEdge = "edge"
	KindNode = "node"
	KindPool = "pool"
)

// SinceFlag adds the flag --since. Its default is one hour.
func SinceFlag(c *cobra.Command, to *time.Duration, usage string) {
	*to = time.Hour
	c.Flags().Var(cli.NewDuration(to, func(d time.Duration) error {
		if d < time.Second || d > historyRetention {
			return fmt.Errorf("is not within 1s..%s, which is how long regions retain it", term.Duration(historyRetention))
		}
		return nil
	}), "since", usage+", such as 30m, 24h or 7d")
}

// Request returns a request for a time span of the length since. The span ends now.
func Request(kind, region, key string, since time.Duration) *nusav1.HistoryRequest {
	now := time.Now()
	return &nusav1.HistoryRequest{Kind: kind, Region: region, Key: key, From: timestamppb.New(now.Add(-since)), To: timestamppb.New(now)}
}

// Show requests series and writes them. A single series is written with all its fields.
// Several series are written as a table with one line each and the given columns.
func Show(c *cli.Session, req *nusav1.HistoryRequest, since time.Duration, columns []string) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	resp, err := c.Topology().History(ctx, req)
	if err != nil {
		return flagOfKey(c, req.GetKind(), err)
	}
	c.WarnPartial(resp.GetErrors())
	return c.Print(resp, func(w *term.Screen) {
		switch all := resp.GetSeries(); {
		case len(all) == 0:
			fmt.Fprintf(w, "no values of %s are retained for the last %s%s; --since reaches back %s\n", seriesText(req), term.Duration(since), cli.Incomplete(resp.GetErrors()), term.Duration(historyRetention))
		case len(all) == 1 && req.GetKey() != "":
			writeSeries(w, all[0])
		default:
			writeAllSeries(w, all, columns)
		}
	})
}

// flagOfKey replaces the field "key" by the name of a flag in the problems of an error,
// because users do not type that field.
func flagOfKey(c *cli.Session, kind string, err error) error {
	problems := rpcerr.Problems(err)
	for _, p := range problems {
		if p.GetField() != "key" {
			return err
		}
		p.Field = "--pool"
		if kind == KindEdge {
			p.Field = "--to"
			p.Message += fmt.Sprintf(": `%s region list` shows them", c.Program)
		}
	}
	if len(problems) == 0 {
		return err
	}
	return rpcerr.Refuse(status.Code(err), problems...)
}

// seriesText returns the name of the requested series.
func seriesText(req *nusav1.HistoryRequest) string {
	text := req.GetKind() + "s"
	if req.GetKey() != "" {
		text = req.GetKind() + " " + req.GetKey()
	}
	if req.GetRegion() != "" {
		text += map[bool]string{true: " from ", false: " in "}[req.GetKind() == KindEdge] + req.GetRegion()
	}
	return text
}
