/** Examples for each kind of model, in English and Korean: values of the fields, by name. */

import { currentLanguage } from "./i18n.js";

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

const EXAMPLES = {
  tagging: [
    { text: "Ada Lovelace was born in London in 1815, and Charles Babbage knew her well." },
    { text: "Angela Merkel flew from Berlin to New York on Monday to meet people at Microsoft." },
    { text: "이순신은 1545년 서울에서 태어났고, 한국은행은 백 원 동전에 그의 얼굴을 새겼다." },
  ],
  intent_and_slots: [
    { text: "play some jazz from the nineties on the kitchen speaker" },
    { text: "book a table for four at an italian restaurant in boston tomorrow" },
    { text: "내일 오후 서울 날씨 알려 줘" },
  ],
  question_answering: [
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
  multiple_choice: [
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
  masked_lm: MASKS,
  pretraining: MASKS,
  vectors: [
    { text: ["A man is playing a guitar.", "Someone is making music.", "The stock market fell on Friday."] },
    { text: ["오늘은 날씨가 맑다.", "하늘에 구름 한 점 없다.", "은행은 네 시에 문을 닫는다."] },
  ],
};

const isKorean = (example) => /\p{Script=Hangul}/u.test(JSON.stringify(example));

/** Examples of a model that takes these inputs and has this mask token; those in the reader's language come first. */
export function examplesOf(task, inputs, mask) {
  const found = EXAMPLES[task] ?? (inputs.includes("second_text") ? PAIRS : SENTENCES);
  const all = found === MASKS ? found.map(({ text }) => ({ text: text.replaceAll(MASK, mask) })) : found;
  const mine = (example) => isKorean(example) === (currentLanguage() === "ko");
  return [...all.filter(mine), ...all.filter((example) => !mine(example))];
}
