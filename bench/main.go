package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/bench/region"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := options{}
	flag.StringVar(&o.nusa, "nusa", "bin/nusa", "the program to measure")
	flag.StringVar(&o.out, "out", "", "file to write; empty: standard output")
	flag.BoolVar(&o.quick, "quick", false, "only see that everything works, within a minute")
	flag.IntVar(&o.runs, "runs", 1, "runs of each measurement: figures become ranges")
	flag.StringVar(&o.only, "only", "", "regular expression: only measurements of a region whose arguments match")
	flag.BoolVar(&o.topologyOnly, "topology", false, "only predictions of round trips, and questions about them")
	flag.BoolVar(&o.federationOnly, "federation", false, "only a federation: its section is replaced in the file that -out names")
	flag.BoolVar(&o.agentOnly, "agent", false, "only an agent: its section is replaced in the file that -out names")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

type options struct {
	nusa, out, only string
	quick           bool
	topologyOnly    bool
	agentOnly       bool
	federationOnly  bool
	runs            int
}

// measured is a scenario and the results of its runs.
type measured struct {
	scenario
	results []*region.Result
}

// run measures everything and writes the page. A failed benchmark is an error. A result
// that misses its goal is no error.
func run(ctx context.Context, o options) error {
	if o.runs < 1 || o.runs > 100 || flag.NArg() > 0 {
		return errors.New("-runs must be 1..100, and there are no other arguments")
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if _, err := os.Stat(o.nusa); err != nil {
		return fmt.Errorf("-nusa: %w: run `make build` first", err)
	}
	if o.agentOnly {
		return o.agentsOnly(ctx)
	}
	if o.federationOnly {
		return o.federationsOnly(ctx)
	}
	p := page{machine: thisMachine(ctx), began: time.Now(), runs: o.runs}
	if err := p.ceiling(ctx, o); err != nil {
		return err
	}
	if err := p.regions(ctx, o, only); err != nil {
		return err
	}
	if err := p.ceiling(ctx, o); err != nil { // the machine's speed may have changed
		return err
	}
	if o.only == "" {
		if p.predicted, err = o.topologies(ctx); err != nil {
			return err
		}
		if p.questions, err = questions(ctx, o.quick); err != nil {
			return err
		}
	}
	if o.only == "" && !o.topologyOnly {
		if p.federations, err = o.federations(ctx); err != nil {
			return err
		}
		if p.plans, err = federationPlans(ctx, o.quick); err != nil {
			return err
		}
		if p.agents, err = o.agents(ctx); err != nil {
			return err
		}
		if p.core, err = core(ctx, o.quick); err != nil {
			return err
		}
	}
	p.took = time.Since(p.began)
	return o.write(p)
}

// regions measures the scenarios of a region whose arguments match only.
func (p *page) regions(ctx context.Context, o options, only *regexp.Regexp) error {
	set := full()
	if o.quick {
		set = quick()
	}
	if o.topologyOnly {
		set = nil
	}
	for _, s := range set {
		if !only.MatchString(s.args) {
			continue
		}
		m := measured{scenario: s}
		for range o.runs {
			r, err := measureOne[region.Result](ctx, o, "region", s.args)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "  %.0f placed /s, %.0f acknowledged /s\n", r.PlacementsPerS, r.AcknowledgedPerS)
			m.results = append(m.results, r)
		}
		p.measured = append(p.measured, m)
	}
	return nil
}

func (o options) write(p page) error {
	var text bytes.Buffer
	p.print(&text)
	if o.out == "" {
		_, err := io.Copy(os.Stdout, &text)
		return err
	}
	return os.WriteFile(o.out, text.Bytes(), 0o644)
}

// measureOne runs `nusa bench` once and returns its result.
func measureOne[R any](ctx context.Context, o options, what, args string) (*R, error) {
	fmt.Fprintf(os.Stderr, "nusa bench %s %s\n", what, args)
	text, err := command(ctx, o.nusa, append([]string{"bench", what, "-o", "json"}, strings.Fields(args)...)...)
	r := new(R)
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	if err != nil {
		return nil, fmt.Errorf("nusa bench %s %s: %w", what, args, err)
	}
	return r, nil
}

// core runs the Go benchmarks of the pure cores.
func core(ctx context.Context, quick bool) ([]coreLine, error) {
	return goBenchmarks(ctx, quick, ".", "./regional/sched")
}

// goBenchmarks runs the Go benchmarks of some packages whose names match an expression.
func goBenchmarks(ctx context.Context, quick bool, match string, packages ...string) ([]coreLine, error) {
	benchtime := "500ms"
	if quick {
		benchtime = "1x"
	}
	fmt.Fprintln(os.Stderr, "go test -bench", match, strings.Join(packages, " "))
	args := append([]string{"test", "-vet=off", "-run", "^$", "-bench", match, "-benchtime", benchtime, "-timeout", "20m"}, packages...)
	out, err := command(ctx, "go", args...)
	if err != nil {
		return nil, err
	}
	return parseCore(out)
}

// command runs a program. When ctx ends, the program gets SIGINT so that it can clean up.
func command(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = os.Stderr
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		os.Stderr.Write(out.Bytes())
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), nil
}
