package dev

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowStartReportsWhatIsMissing: a slow start reports what is missing. Once everything is
// ready it reports nothing.
func TestSlowStartReportsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting([]string{"tokyo", "lima"}, 3)
		var said []string
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		go w.report(ctx, func(text string) { said = append(said, fmt.Sprint(time.Since(begin), " ", text)) })
		time.Sleep(4 * time.Second)
		w.globalReady()
		time.Sleep(10 * time.Second)
		if w.region("lima", true, 1) {
			t.Error("all is ready without tokyo")
		}
		time.Sleep(10 * time.Second)
		w.region("tokyo", true, 4)
		w.region("lima", false, 3)
		time.Sleep(10 * time.Second)
		if !w.region("lima", true, 3) {
			t.Error("nothing is ready")
		}
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		want := []string{
			"1s waiting for the global server",
			"11s waiting for region tokyo (not connected to the global server yet), region lima (not connected to the global server yet)",
			"21s waiting for region tokyo (not connected to the global server yet), region lima (1 of 3 nodes ready)",
			"31s waiting for region lima (not connected to the global server yet)",
		}
		if !slices.Equal(said, want) {
			t.Errorf("said %q,\nwant %q", said, want)
		}
	})
}
