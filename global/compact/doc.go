// Package compact keeps the slots and summaries of many jobs in little memory. With a hundred
// thousand jobs, a few more words for each cost tens of megabytes, and each pointer costs the
// garbage collector time.
//
//	slots.go      Slots: the slots of a job
//	summaries.go  Summaries: what regions reported about a job
//	shared.go     Shared: equal values share their memory
//	deflate.go    Pack and Unpack: the stored form of specs of earlier versions
package compact
