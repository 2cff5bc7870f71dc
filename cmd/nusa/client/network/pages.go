package network

import (
	"encoding/csv"
	"fmt"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// A matrix of many regions comes in pages of complete rows, and the client shows one page
// at a time. All edges of 1,000 regions, a million, would take a gigabyte of memory.

func matrixPage(c *cli.Session, req *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	return c.Topology().Matrix(ctx, req)
}

// eachPage calls f for a page and for all pages that follow.
func eachPage(c *cli.Session, page *nusav1.MatrixResponse, f func(*nusav1.MatrixResponse) error) error {
	for {
		if err := f(page); err != nil || page.GetNext() == "" {
			return err
		}
		var err error
		page, err = matrixPage(c, &nusav1.MatrixRequest{After: page.GetNext()})
		if err != nil {
			return err
		}
	}
}

// showPagedMatrix shows a matrix of several pages. first is its first page.
func showPagedMatrix(c *cli.Session, first *nusav1.MatrixResponse, o latencyOptions) error {
	switch {
	case c.Output != "table":
		return printPagedMatrix(c, first)
	case o.all:
		whole := &nusav1.MatrixResponse{Regions: first.GetRegions(), SeenBy: first.GetSeenBy(), Alone: first.GetAlone()}
		err := eachPage(c, first, func(page *nusav1.MatrixResponse) error {
			for _, e := range page.GetEdges() { // retain only what the cells show
				whole.Edges = append(whole.Edges, &nusav1.Edge{
					From: e.GetFrom(), To: e.GetTo(), State: e.GetState(), Source: e.GetSource(), Doubt: e.GetDoubt(),
					P50: e.GetP50(), P90: e.GetP90(), P99: e.GetP99(),
				})
			}
			return nil
		})
		if err != nil {
			return err
		}
		writeLatency(c.Screen(), whole, o)
		return nil
	}
	var lines []regionLine
	var there edgeMarks
	err := eachPage(c, first, func(page *nusav1.MatrixResponse) error {
		there.add(page.GetEdges())
		rows := rowsOf(page.GetEdges())
		for _, name := range page.GetRegions() {
			if row := rows[name]; row != nil {
				lines = append(lines, regionLineOf(name, row, len(page.GetRegions())-1, o.percentile))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	v := c.Screen()
	writeSeenBy(v, "the matrix", first)
	fmt.Fprintf(c.Out, "round trips, p%d in ms%s", o.percentile, tooWide)
	writeRegionLines(v, lines, o.percentile)
	writeLegendOf(v, there)
	return nil
}

// printPagedMatrix prints the pages as one document with one edge on each line.
func printPagedMatrix(c *cli.Session, first *nusav1.MatrixResponse) error {
	head, err := cli.MessageTree(&nusav1.MatrixResponse{Regions: first.GetRegions(), SeenBy: first.GetSeenBy(), Alone: first.GetAlone()})
	if err != nil {
		return err
	}
	begin, between, end := "", "\n", "\n"
	if c.Output == "json" {
		text := head.Compact() // {"regions":[…]}
		begin, between, end = string(text[:len(text)-1])+",\"edges\":[\n", ",\n", "\n]}\n"
	} else {
		begin = string(head.YAML()) + "edges:\n"
	}
	c.Printf("%s", begin)
	count := 0
	err = eachPage(c, first, func(page *nusav1.MatrixResponse) error {
		for _, e := range page.GetEdges() {
			n, err := cli.MessageTree(e)
			if err != nil {
				return err
			}
			if count > 0 {
				c.Printf("%s", between)
			}
			if c.Output == "yaml" {
				c.Printf("  - ")
			}
			c.Printf("%s", n.Compact())
			count++
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.Printf("%s", end)
	return nil
}

// writeCSV writes the format that topology.ParseTable reads. Values are in milliseconds,
// and unknown round trips are blank.
func writeCSV(c *cli.Session, first *nusav1.MatrixResponse, o latencyOptions) error {
	regions := first.GetRegions()
	w := csv.NewWriter(c.Out)
	if err := w.Write(append([]string{"from"}, regions...)); err != nil {
		return err
	}
	guessed, nothing := 0, 0
	whole := first.GetNext() == ""
	err := eachPage(c, first, func(page *nusav1.MatrixResponse) error {
		rows := rowsOf(page.GetEdges())
		for _, a := range regions {
			if o.from != "" && a != o.from || rows[a] == nil && !whole {
				continue
			}
			to := map[string]*nusav1.Edge{}
			for _, e := range rows[a] {
				to[e.GetTo()] = e
			}
			row := []string{a}
			for _, b := range regions {
				text := ""
				switch e := to[b]; {
				case a == b:
				case unknown(e) || e.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
					nothing++
				case e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED && !o.guesses:
					guessed++
				default:
					text = exactMillis(rtt(e, o.percentile).AsDuration())
				}
				row = append(row, text)
			}
			if err := w.Write(row); err != nil {
				return err
			}
		}
		return nil
	})
	if w.Flush(); err == nil {
		err = w.Error()
	}
	if err != nil {
		return err
	}
	if guessed > 0 {
		c.Warn("%s left blank, because they were not measured: --guesses fills them in", term.Plural(guessed, "cell"))
	}
	if nothing > 0 {
		c.Warn("%s left blank: unreachable or unknown", term.Plural(nothing, "cell"))
	}
	return nil
}
