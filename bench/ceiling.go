package main

import (
	"context"
	"fmt"
	"io"

	"github.com/nusa-scheduler/nusa/bench/region"
)

// thereLogged is the ceiling of the machine on which the goals were set: calls a second,
// by number of callers.
var thereLogged = map[int]float64{16: 20_000, 64: 54_000}

// ceiling measures gRPC and the Raft log, the bare parts of a region. The speed of a
// shared machine varies, so ceiling is called before and after the other measurements.
func (p *page) ceiling(ctx context.Context, o options) error {
	if o.topologyOnly || o.only != "" {
		return nil
	}
	lines, err := goBenchmarks(ctx, o.quick, "^BenchmarkCeiling$", "./regional/quorum")
	if err != nil {
		return err
	}
	p.ceilings = append(p.ceilings, lines)
	if len(p.sessions) > 0 {
		return nil
	}
	if p.rest, err = goBenchmarks(ctx, o.quick, "^BenchmarkCeilingAtRest$", "./regional/quorum"); err != nil {
		return err
	}
	p.sessions, err = goBenchmarks(ctx, o.quick, "^BenchmarkSessions$", "./regional")
	return err
}

func (p page) printCeilings(w io.Writer) {
	if len(p.ceilings) != 2 {
		return
	}
	fmt.Fprint(w, `
## What the parts can do

`+"`go test -bench Ceiling ./regional/quorum`"+`: unary gRPC calls of 200 bytes, and
nothing else. With log=true a call is answered when it is in a Raft log on disk, as in
Nusa: calls that wait at the same time share an entry. The calls are measured before and
after the measurements below. The goals below were set on a machine that reached
57,000–80,000 empty calls a second. With a log of raft-boltdb that machine reached 54,000
calls a second with 64 callers and 20,000 with 16, and one caller waited 0.36 ms for each
call.

| callers | calls /s, before | after |
|---|---|---|
`)
	for i, before := range p.ceilings[0] {
		fmt.Fprintf(w, "| %s | %s | %s |\n", before.name, number(1e9/before.ns), number(1e9/p.ceilings[1][i].ns))
	}
	fmt.Fprint(w, `
One call every 20 ms. Most of its latency is the time that the machine needs to wake up:

| one every 20 ms | p50 / p99 ms |
|---|---|
`)
	for _, l := range p.rest {
		fmt.Fprintf(w, "| %s | %s / %s |\n", l.name, short(l.metrics["p50-ms"]), short(l.metrics["p99-ms"]))
	}
	fmt.Fprint(w, `
`+"`go test -bench Sessions ./regional`"+`: the live memory of a server for each
connected agent, in KiB. Sessions/bare is a gRPC server that sends the same messages and
stores nothing. Garbage that is not collected yet adds 60 % and more.

| server | KiB an agent | of these, stacks |
|---|---|---|
`)
	for _, l := range p.sessions {
		fmt.Fprintf(w, "| %s | %.1f | %.1f |\n", l.name, l.metrics["B/agent"]/1024, l.metrics["stack-B/agent"]/1024)
	}
}

// logged returns the lowest and the highest ceiling of this run with a Raft log, in calls
// a second; 0 = unknown.
func (p page) logged(callers int) (least, most float64) {
	for _, lines := range p.ceilings {
		for _, l := range lines {
			if l.name == fmt.Sprintf("Ceiling/callers=%d/log=true", callers) {
				v := 1e9 / l.ns
				if least == 0 || v < least {
					least = v
				}
				most = max(most, v)
			}
		}
	}
	return least, most
}

// printShares writes goals and measured figures as shares of the ceilings.
func (p page) printShares(w io.Writer) {
	if len(p.ceilings) == 0 {
		return
	}
	fmt.Fprint(w, `
### Beside the parts alone

Placements a second, divided by the calls a second that gRPC and the Raft log alone
reach. The column goal is for the machine on which the goal was set. The column here is
for the faster and for the slower of the two runs above.

| arguments | goal | here |
|---|---|---|
`)
	for _, m := range p.measured {
		least, most := p.logged(m.callers)
		if m.asked == 0 || least == 0 {
			continue
		}
		share := func(of float64) string {
			return m.span(short, func(r *region.Result) float64 { return r.PlacementsPerS / of })
		}
		fmt.Fprintf(w, "| `%s` | %s | %s … %s |\n", m.args, short(float64(m.asked)/thereLogged[m.callers]), share(most), share(least))
	}
}
