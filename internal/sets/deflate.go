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

// Deflate compresses data.
func Deflate(data []byte) []byte {
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes everything
	}
	return out.Bytes()
}

// Inflate decompresses data to at most 16 MiB.
func Inflate(data []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(data))
	defer r.Close()
	out, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if len(out) > maxInflated {
		return nil, fmt.Errorf("decompress: more than %d bytes", maxInflated)
	}
	return out, nil
}

// deterministic encodes equal messages as equal bytes.
var deterministic = proto.MarshalOptions{Deterministic: true}

// pack encodes and compresses a message.
func pack(m proto.Message) []byte {
	raw, err := deterministic.Marshal(m)
	if err != nil {
		panic(err) // the texts were checked
	}
	return Deflate(raw)
}

// unpack reverses pack.
func unpack(data []byte, m proto.Message) error {
	raw, err := Inflate(data)
	if err != nil {
		return err
	}
	return proto.Unmarshal(raw, m)
}

// errLengths means that a list of a table does not have one value for each item.
var errLengths = errors.New("malformed table: its lists differ in length")
