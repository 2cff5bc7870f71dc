package region_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// options are the words "name=value" and "name" of a command.
type options map[string]string

func optionsOf(words []string) options {
	o := options{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		o[name] = value
	}
	return o
}

func (o options) has(name string) bool { _, ok := o[name]; return ok }

func (o options) number(name string) uint64 {
	n, _ := strconv.ParseUint(o[name], 10, 64)
	return n
}

func (o options) duration(name string) time.Duration {
	d, _ := time.ParseDuration(o[name])
	return d
}

func (w *script) setConfig(words []string) {
	o := optionsOf(words)
	for name, field := range map[string]*time.Duration{
		"lease": &w.config.Lease, "max": &w.config.LeaseMax, "predecessor": &w.config.PredecessorUntil, "until": &w.config.ActiveUntil,
	} {
		if o.has(name) {
			*field = o.duration(name)
		}
	}
	if o.has("revision") {
		w.config.Revision = int64(o.number("revision"))
	}
	if o.has("earlier") {
		w.config.Terms = nil
		for _, b := range strings.Split(o["earlier"], ",") { // NUMBER:REVISION
			number, revision, _ := strings.Cut(b, ":")
			term := options{"term": number, "revision": revision}
			w.config.Terms = append(w.config.Terms, region.Beginning{
				Term: region.Term{Number: term.number("term"), Nonce: "n" + number}, Earlier: int64(term.number("revision")),
			})
		}
	}
	w.config.Conflict, w.config.Unconfirmed = o.has("conflict"), o.has("unconfirmed")
	w.config.ServesFrom, w.config.GrantsFrom = 0, 0
	if o.has("recovered") {
		w.config = w.config.AfterRecovery(o.duration("recovered"))
	}
}

func (w *script) runSession(t *testing.T, words []string, out *strings.Builder) {
	at, err := time.ParseDuration(words[1])
	if err != nil {
		t.Fatalf("command %v: %v", words, err)
	}
	args := words[2:]
	number := func(i int) uint64 { n, _ := strconv.ParseUint(args[i], 10, 64); return n }
	var e region.Event
	switch words[0] {
	case "open":
		o := optionsOf(args)
		w.state = region.Open(w.config, region.Record{
			Name: "sea", ClusterID: o["cluster"], Incarnation: o.number("inc"), Term: o.number("term"), AppliedIndex: o.number("index"),
			Fence: o.number("fence"), Level: uint32(o.number("level")), RestoreID: o["restore"], Lost: o.has("lost"), NothingRuns: o.has("empty"),
		}, at)
	case "hello":
		o := optionsOf(args[4:])
		term, nonce, _ := strings.Cut(o["known"], ",")
		e = region.Hello{
			Stream: number(0), ClusterID: strings.TrimPrefix(args[1], "none"), Incarnation: number(2), Term: number(3), Master: "m" + args[3],
			AppliedIndex: o.number("index"), Fence: o.number("fence"), Level: uint32(o.number("level")), BoundName: o["bound"], RestoreID: o["restore"],
			Federation: o["federation"], KnownTerm: region.Term{Number: options{"": term}.number(""), Nonce: nonce},
			KnownRevision: int64(o.number("revision")), Acked: o.number("acked"), Required: o.number("required"),
		}
	case "lease":
		o := optionsOf(args[2:])
		e = region.LeaseRequested{Stream: number(0), ID: number(1), Granted: o.number("granted"), Orders: o.number("orders"), CommitBlocked: o.duration("blocked"), Index: o.number("index"), Ordered: o.has("ordered")}
	case "acked":
		e = region.OrdersAcked{Stream: number(0), Position: number(1), Index: optionsOf(args[2:]).number("index")}
	case "received":
		e = region.Received{Stream: number(0)}
	case "ended":
		e = region.StreamEnded{Stream: number(0)}
	case "tick":
		e = region.Tick{}
	case "declare":
		e = region.Declare{Why: args[0], NothingRuns: len(args) > 1}
	default:
		t.Fatalf("unknown command %v", words)
	}
	if e != nil {
		var effects []region.Effect
		w.state, effects = region.Step(w.config, w.state, at, e)
		for _, e := range effects {
			fmt.Fprintln(out, e)
		}
	}
	fmt.Fprintf(out, "  stream %d, silent for %s, bound until %.1fs", w.state.Stream, w.state.SilentFor(at), w.state.BoundUntil(5*time.Second).Seconds())
	if w.state.CommitBlocked > 0 {
		fmt.Fprintf(out, ", commits blocked for %s", w.state.CommitBlocked)
	}
	if w.state.Lost {
		fmt.Fprint(out, ", lost")
	}
	if w.config.Unconfirmed && w.state.Confirmed() {
		fmt.Fprint(out, ", confirmed")
	}
	fmt.Fprintln(out)
}
