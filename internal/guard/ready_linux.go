package guard

import (
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// reader reads from a socket into buffers that it takes only when bytes have arrived. Only one
// goroutine may use it.
type reader struct {
	raw  syscall.RawConn
	read func(fd uintptr) bool

	size int
	pool mem.BufferPool
	got  *[]byte
	n    int
	err  error
}

// newReader returns a reader, or nil if a connection has no socket.
func newReader(c net.Conn) *reader {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	r := &reader{raw: raw}
	r.read = r.try
	return r
}

// try reads once. It returns false if no bytes have arrived.
func (r *reader) try(fd uintptr) bool {
	r.got = r.pool.Get(r.size)
	for {
		r.n, r.err = syscall.Read(int(fd), *r.got)
		if r.err != syscall.EINTR {
			break
		}
	}
	if r.err == nil {
		return true
	}
	r.pool.Put(r.got)
	r.got = nil
	return r.err != syscall.EAGAIN
}

// next waits for bytes, and returns a buffer of the pool that begins with the n bytes that were
// read.
func (r *reader) next(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error) {
	r.size, r.pool = size, pool
	err = r.raw.Read(r.read)
	buffer, n = r.got, r.n
	if err == nil {
		err = r.err
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	r.pool, r.got, r.n, r.err = nil, nil, 0, nil
	if err == nil {
		return buffer, n, nil
	}
	if buffer != nil {
		pool.Put(buffer)
	}
	return nil, 0, err
}
