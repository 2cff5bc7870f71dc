package main

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestWhileReadEndsWithTheReader: the context ends when no process reads the pipe any more,
// and its cause says so. It does not end while the pipe is read, and never for a file.
func TestWhileReadEndsWithTheReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	toFile, done := whileRead(t.Context(), file)
	defer done()
	ctx, done := whileRead(t.Context(), w)
	defer done()
	if _, err := w.WriteString("first\n"); err != nil || ctx.Err() != nil {
		t.Fatalf("while it is read: %v, %v", err, ctx.Err())
	}
	r.Close()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("the reader's end is not noticed")
	}
	if !errors.Is(context.Cause(ctx), errNoReader) {
		t.Errorf("ended because of %v", context.Cause(ctx))
	}
	// Without whileRead this would end the process.
	if _, err := w.WriteString("second\n"); err == nil {
		t.Error("a write without a reader succeeds")
	}
	if toFile.Err() != nil {
		t.Errorf("writing to a file ended: %v", context.Cause(toFile))
	}
}
