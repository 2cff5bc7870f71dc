package sets

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
)

// maxInflated bounds decompressed data, in bytes.
const maxInflated = 16 << 20

// writers holds unused compressors. They are used again, because each has more than half a
// megabyte.
var writers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.DefaultCompression)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// readers holds unused decompressors, each of 40 KiB.
var readers = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}

// buffers holds unused buffers of at most keptBuffer bytes.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const keptBuffer = 1 << 20

// Deflate compresses data.
func Deflate(data []byte) []byte {
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	out := buffers.Get().(*bytes.Buffer)
	defer putBuffer(out)
	w.Reset(out)
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes everything
	}
	return bytes.Clone(out.Bytes())
}

// Inflate decompresses data to at most 16 MiB.
func Inflate(data []byte) ([]byte, error) {
	var out bytes.Buffer
	err := inflate(data, &out)
	return out.Bytes(), err
}

func inflate(data []byte, out *bytes.Buffer) error {
	r := readers.Get().(io.Reader)
	defer readers.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(data), nil); err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	n, err := out.ReadFrom(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if n > maxInflated {
		return fmt.Errorf("decompress: more than %d bytes", maxInflated)
	}
	return nil
}

// deterministic encodes equal messages as equal bytes.
var deterministic = proto.MarshalOptions{Deterministic: true}

// pack encodes and compresses a message.
func pack(m proto.Message) []byte {
	unused := buffers.Get().(*bytes.Buffer)
	raw, err := deterministic.MarshalAppend(unused.AvailableBuffer(), m)
	if err != nil {
		panic(err) // the texts were checked
	}
	defer putBuffer(bytes.NewBuffer(raw))
	return Deflate(raw)
}

// unpack reverses pack.
func unpack(data []byte, m proto.Message) error {
	return unpackTo(data, func(raw []byte) error { return proto.Unmarshal(raw, m) })
}

// unpackTo decompresses data for decode, which copies what it keeps.
func unpackTo(data []byte, decode func(raw []byte) error) error {
	raw := buffers.Get().(*bytes.Buffer)
	defer putBuffer(raw)
	if err := inflate(data, raw); err != nil {
		return err
	}
	return decode(raw.Bytes())
}

func putBuffer(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		b.Reset()
		buffers.Put(b)
	}
}

// errLengths means that a list of a table does not have one value for each item.
var errLengths = errors.New("malformed table: its lists differ in length")
