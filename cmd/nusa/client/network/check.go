package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// findingKinds are the kinds of findings, the most serious first. With --fail the findings
// of kinds that are wrong make the command fail.
var findingKinds = []struct {
	kind, title string
	wrong       bool
}{
	{"impossible", "faster than light in fibre", true},
	{"location", "locations to look at", false},
	{"doubtful", "not believed", false},
	{"one_way", "cut one way", true},
	{"unreachable", "out of reach", true},
	{"stale", "stale", false},
	{"asymmetric", "different by direction", false},
	{"detour", "shorter over a relay", false},
}

func checkCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.CheckTopologyRequest{}
	var percentile, limit int
	var fail bool
	c := &cobra.Command{
		Use: "check", Short: "List suspicious values of the latency matrix", Args: cli.Positional(),
		Long: `Lists suspicious values of the matrix, the worst kind first: round trips faster than
light, pairs that are cut, stale measurements, directions that differ, and detours
that are shorter than the direct way. The exit code is 0; with --fail it is 1 when
something impossible or cut was found.`,
		Example: "  nusa topology check\n  nusa topology check --min-gain 0.2 --percentile 99\n  nusa topology check --fail -o json",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if err := history.CheckPercentile(percentile); err != nil {
				return err
			}
			if limit < 1 || limit > topology.MaxFindings {
				return fmt.Errorf("--limit: %d is not within 1..%d", limit, topology.MaxFindings)
			}
			if !(req.GetMinGain() > 0 && req.GetMinGain() < 1) {
				return fmt.Errorf("--min-gain: %g is not a share between 0 and 1, such as 0.1", req.GetMinGain())
			}
			req.Percentile, req.Limit = int32(percentile), int32(limit)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Topology().Check(ctx, req)
			if err != nil {
				return err
			}
			if err := c.Print(resp, func(w *term.Screen) { writeFindings(w, resp) }); err != nil {
				return err
			}
			if n := wrongFindings(resp); fail && n > 0 {
				return fmt.Errorf("%s of an impossible or cut edge: exit code 1 because of --fail", term.Plural(n, "finding"))
			}
			return nil
		}),
	}
	f := c.Flags()
	f.IntVarP(&percentile, "percentile", "p", 50, "50, 90 or 99, of detours")
	f.IntVar(&limit, "limit", 20, "at most this many of a kind; the totals count all")
	f.Float64Var(&req.MinGain, "min-gain", topology.DefaultMinGain, "least share of the direct round trip that a detour saves")
	f.BoolVar(&fail, "fail", false, "exit code 1 when something impossible or cut is found")
	return c
}

func wrongFindings(resp *nusav1.CheckTopologyResponse) int32 {
	n := int32(0)
	for _, k := range findingKinds {
		if k.wrong {
			n += resp.GetTotals()[k.kind]
		}
	}
	return n
}

func writeFindings(w *term.Screen, resp *nusav1.CheckTopologyResponse) {
	writeSeenBy(w, byMatrix, resp)
	pairs := max(resp.GetRegions()*(resp.GetRegions()-1), 0)
	fmt.Fprintf(w, "%s, %d of %d ordered pairs measured\n", term.Plural(resp.GetRegions(), "region"), resp.GetMeasured(), pairs)
	byKind := map[string][]*nusav1.TopologyFinding{}
	for _, f := range resp.GetFindings() {
		byKind[f.GetKind()] = append(byKind[f.GetKind()], f)
	}
	if len(byKind) == 0 {
		fmt.Fprintln(w, w.Good("nothing suspicious was found"))
		return
	}
	kinds := []string{}
	titles := map[string]string{}
	wrong := map[string]bool{}
	for _, k := range findingKinds {
		kinds, titles[k.kind], wrong[k.kind] = append(kinds, k.kind), k.title, k.wrong
	}
	// A newer server may report kinds that this client does not know.
	for _, k := range slices.Sorted(maps.Keys(byKind)) {
		if titles[k] == "" {
			kinds, titles[k] = append(kinds, k), history.FieldName(k)
		}
	}
	for _, k := range kinds {
		list := byKind[k]
		if len(list) == 0 {
			continue
		}
		title := fmt.Sprintf("%s: %d", titles[k], max(resp.GetTotals()[k], int32(len(list))))
		if total := int(resp.GetTotals()[k]); total > len(list) {
			title += fmt.Sprintf(", the first %d (--limit shows more)", len(list))
		}
		if wrong[k] {
			title = w.Bad(title)
		} else {
			title = w.Wait(title)
		}
		fmt.Fprintf(w, "\n%s\n", title)
		findingTable(list).WriteBody(w)
	}
}

// findingTable returns a table of findings with two columns: the pair of regions, and the
// message. A message that begins with the pair is shown without it.
func findingTable(list []*nusav1.TopologyFinding) *term.Table {
	t := term.NewTable("PAIR", "WORDS")
	for _, f := range list {
		pair := f.GetFrom()
		if f.GetTo() != "" {
			pair = strings.TrimPrefix(pair+" → "+f.GetTo(), " → ")
		}
		words := term.OneLine(f.GetMessage())
		words = strings.TrimPrefix(words, pair+": ")
		words = strings.TrimPrefix(words, pair+" ")
		t.Row(pair, words)
	}
	return t
}
