package quorum

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// logger passes the records of the Raft library to slog. The library logs every retry and
// every vote as a warning. logger makes only the library's errors warnings. The server
// itself logs the important events of elections.
type logger struct {
	log  *slog.Logger
	name string
	args []any
}

func newLogger(l *slog.Logger) hclog.Logger { return logger{log: l, name: "raft"} }

func (l logger) Log(level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Error {
		to = slog.LevelWarn
	}
	if !l.log.Enabled(context.Background(), to) {
		return
	}
	all := slices.Concat(l.args, args)
	for i, a := range all {
		if f, late := a.(hclog.Format); late && len(f) > 0 { // hclog.Fmt
			all[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	l.log.Log(context.Background(), to, l.name+": "+msg, all...)
}

func (l logger) Trace(string, ...any)                {}
func (l logger) Debug(msg string, args ...any)       { l.Log(hclog.Debug, msg, args...) }
func (l logger) Info(msg string, args ...any)        { l.Log(hclog.Info, msg, args...) }
func (l logger) Warn(msg string, args ...any)        { l.Log(hclog.Warn, msg, args...) }
func (l logger) Error(msg string, args ...any)       { l.Log(hclog.Error, msg, args...) }
func (l logger) IsTrace() bool                       { return false }
func (l logger) IsDebug() bool                       { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l logger) IsInfo() bool                        { return l.IsDebug() }
func (l logger) IsWarn() bool                        { return true }
func (l logger) IsError() bool                       { return true }
func (l logger) ImpliedArgs() []any                  { return l.args }
func (l logger) Name() string                        { return l.name }
func (l logger) SetLevel(hclog.Level)                {}
func (l logger) GetLevel() hclog.Level               { return hclog.Debug }
func (l logger) ResetNamed(name string) hclog.Logger { l.name = name; return l }
func (l logger) Named(name string) hclog.Logger      { l.name += "." + name; return l }
func (l logger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(io.Discard, "", 0)
}
func (l logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }

func (l logger) With(args ...any) hclog.Logger {
	l.args = append(l.args[:len(l.args):len(l.args)], args...)
	return l
}
