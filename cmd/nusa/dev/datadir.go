package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrShape: the data directory holds a federation with other regions or another number of
// servers.
var ErrShape = errors.New("a federation of another shape")

// shapeFile is the name of the file with the shape, in the data directory.
const shapeFile = "shape.json"

// shape holds what must not change between two starts of a federation. A Raft group of
// another size would wait for its members for ever, and a removed region would still own
// its work. The number of agents may change.
type shape struct {
	// Regions are the regions in the order of their ports.
	Regions []string `json:"regions"`
	// Servers is the number of servers of each region.
	Servers int `json:"servers"`
}

// loadShape sets missing options to the values of an earlier start in the data directory.
// It refuses options that contradict the earlier start.
func (o Options) loadShape() (Options, error) {
	if o.DataDir == "" {
		return o, nil
	}
	path := filepath.Join(o.DataDir, shapeFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	var was shape
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return o, fmt.Errorf("data directory: %s: %w", path, err)
	}
	if o.Servers != 0 && o.Servers != was.Servers {
		return o, fmt.Errorf("--servers %d: %s holds %w, made with --servers %d: start it with that, or choose another --data-dir",
			o.Servers, o.DataDir, ErrShape, was.Servers)
	}
	same := slices.Equal(slices.Sorted(slices.Values(o.Regions)), slices.Sorted(slices.Values(was.Regions)))
	if len(o.Regions) > 0 && !same {
		return o, fmt.Errorf("--regions: %s holds %w, made with --regions %s: start it with those, or choose another --data-dir",
			o.DataDir, ErrShape, strings.Join(was.Regions, ","))
	}
	o.Regions, o.Servers = was.Regions, was.Servers
	return o, nil
}

// saveShape writes the shape for the next start.
func (o Options) saveShape() error {
	text, err := json.MarshalIndent(shape{Regions: o.Regions, Servers: o.Servers}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(o.DataDir, shapeFile)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}
