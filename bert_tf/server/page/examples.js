/** Examples for each kind of model, in English and Korean: values of the fields, by name. */

import { currentLanguage } from "./i18n.js";
import { hasOutput, inputsOf, isList } from "./tasks.js";
import { specialTokens } from "./tokens.js";

const SENTENCES = [
  { text: "The food was not good at all." },
  { text: "An unforgettable film, and I cannot recommend it enough." },
  { text: "두 시간이 아깝지 않은, 정말 재미있는 영화였다." },
];
const PAIRS = [
  { text: "A man is playing a guitar.", second_text: "Someone is making music with an instrument." },
  { text: "The company reported a loss.", second_text: "The company reported a profit." },
  { text: "한 남자가 기타를 치고 있다.", second_text: "누군가 악기를 연주한다." },
];
const MASK = "[MASK]"; // replaced by the name that the model has for it
const MASKS = [
  { text: "The capital of France is [MASK]." },
  { text: "She opened the [MASK] and read the [MASK] page." },
  { text: "대한민국의 수도는 [MASK]이다." },
];

// By an input or an output of the model, the first that it has.
const EXAMPLES = {
  choices: [
    {
      context: "The man broke his toe.",
      question: "What was the cause of this?",
      choices: ["He got a hole in his sock.", "He dropped a hammer on his foot."],
    },
    {
      context: "밖에 비가 많이 온다.",
      question: "무엇을 가지고 나가야 할까?",
      choices: ["우산", "선글라스", "부채"],
    },
  ],
  context: [
    {
      question: "When did Ada Lovelace publish her notes?",
      context:
        "Ada Lovelace was born in London in 1815. She published her notes on Babbage's Analytical Engine in 1843, " +
        "and they contain what many call the first program. She died in 1852.",
    },
    {
      question: "한글은 누가 만들었는가?",
      context:
        "한글은 조선의 네 번째 임금인 세종대왕이 1443년에 만들어 1446년에 반포한 문자이다. 처음 이름은 훈민정음이었다.",
    },
  ],
  mask_count: MASKS,
  vector: [
    { text: ["A man is playing a guitar.", "Someone is making music.", "The stock market fell on Friday."] },
    { text: ["오늘은 날씨가 맑다.", "하늘에 구름 한 점 없다.", "은행은 네 시에 문을 닫는다."] },
  ],
  intent: [
    { text: "play some jazz from the nineties on the kitchen speaker" },
    { text: "book a table for four at an italian restaurant in boston tomorrow" },
    { text: "내일 오후 서울 날씨 알려 줘" },
  ],
  tag: [
    { text: "Ada Lovelace was born in London in 1815, and Charles Babbage knew her well." },
    { text: "Angela Merkel flew from Berlin to New York on Monday to meet people at Microsoft." },
    { text: "이순신은 1545년 서울에서 태어났고, 한국은행은 백 원 동전에 그의 얼굴을 새겼다." },
  ],
  second_text: PAIRS,
};

const isKorean = (example) => /\p{Script=Hangul}/u.test(JSON.stringify(example));

/** Examples of a model; those in the reader's language come first. */
export function examplesOf(model) {
  const names = inputsOf(model);
  const found = Object.keys(EXAMPLES).find((name) => names.includes(name) || hasOutput(model, name));
  const all = found ? EXAMPLES[found] : SENTENCES.map((_, number) => sentences(model, names, number));
  const mask = ({ text }) => ({ text: text.replaceAll(MASK, specialTokens(model).mask) });
  const made = all === MASKS ? all.map(mask) : all;
  const mine = (example) => isKorean(example) === (currentLanguage() === "ko");
  return [...made.filter(mine), ...made.filter((example) => !mine(example))];
}

/** An example of any texts, from the sentence of this number. */
function sentences(model, names, number) {
  const text = (at) => SENTENCES[(number + at) % SENTENCES.length].text;
  return Object.fromEntries(names.map((name, at) => [name, isList(model, name) ? [text(at), text(at + 1)] : text(at)]));
}
