package compact

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"
)

// maxUnpacked bounds what Unpack returns. A job has at most 1 MiB.
const maxUnpacked = 2 << 20

// packers are reused: a new one takes a megabyte.
var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // cannot fail: the level is valid
	return w
}}

// Pack returns the stored form of an encoded spec.
func Pack(spec []byte) ([]byte, error) {
	var out bytes.Buffer
	w, _ := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	if _, err := w.Write(spec); err != nil {
		return nil, fmt.Errorf("compress a spec: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress a spec: %w", err)
	}
	return out.Bytes(), nil
}

// Unpack is the inverse of Pack.
func Unpack(packed []byte) ([]byte, error) {
	spec, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxUnpacked+1))
	if err != nil {
		return nil, fmt.Errorf("decompress a spec: %w", err)
	}
	if len(spec) > maxUnpacked {
		return nil, fmt.Errorf("decompress a spec: it has more than %d bytes", maxUnpacked)
	}
	return spec, nil
}
