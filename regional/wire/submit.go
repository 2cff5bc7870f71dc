package wire

import "github.com/nusa-scheduler/nusa/internal/submits"

// SubmitRequest is a submit request that stays encoded; Codec leaves it so.
type SubmitRequest = submits.Request

// SubmitFields are the fields of a SubmitRequest, with the spec still encoded.
type SubmitFields = submits.Fields
